#!/usr/bin/env python3
"""Loss calls of PyTorch as a user makes them, forward and backward, host time included: lossgauge with a gauge open and every signal on, torch, and the Triton
losses of Liger-Kernel and flash-attention where their sources are given. bf16 logits, 25 % of the labels ignored, medians of interleaved rounds, each in an
order of its own: whose code and data the caches of the host hold decides about a fourth of a short call.

  LOSSGAUGE_LIBRARY=.../liblossgauge.so.0 PYTHONPATH=client/python tests/bench/torch_loss_bench.py
  LOSSGAUGE_LIGER: a directory or wheel that holds liger_kernel. LOSSGAUGE_FLASH: flash-attention's ops/triton/cross_entropy.py.

Each call works on logits of its own, copied before the clock starts: those that take the logits' memory for their gradient spoil them. Memory is what a call
takes at its peak beyond the logits, as a multiple of them: 1 is the gradient.
"""
import argparse
import importlib.util
import os
import random
import statistics
import sys
import tempfile
import time

import torch

import lossgauge

SHAPES = "8192x32000,8192x128256,16384x128256,4096x256000,32768x50304"


def flash_loss():
    spec = importlib.util.spec_from_file_location("flash_cross_entropy", os.environ["LOSSGAUGE_FLASH"])
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)

    def loss(logits, labels, inplace):
        losses, _ = module.cross_entropy_loss(logits, labels, ignore_index=-100, inplace_backward=inplace)
        return losses.sum() / (labels != -100).sum()

    return loss


def liger_loss():
    sys.path.insert(0, os.environ["LOSSGAUGE_LIGER"])
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    return lambda logits, labels: LigerCrossEntropyFunction.apply(logits, labels, None, -100)[0]


def make_losses(gauge):
    """Name -> loss(logits, labels), and the names of other people's kernels."""
    cross_entropy = torch.nn.functional.cross_entropy
    losses = {
        "lossgauge": gauge.cross_entropy,
        "lossgauge in place": lambda logits, labels: gauge.cross_entropy(logits, labels, inplace=True),
        "torch": cross_entropy,
        "torch, fp32": lambda logits, labels: cross_entropy(logits.float(), labels),
    }
    peers = []
    if os.environ.get("LOSSGAUGE_LIGER"):
        losses["Liger (in place)"] = liger_loss()
        peers.append("Liger (in place)")
    if os.environ.get("LOSSGAUGE_FLASH"):
        flash = flash_loss()
        losses["flash"] = lambda logits, labels: flash(logits, labels, False)
        losses["flash in place"] = lambda logits, labels: flash(logits, labels, True)
        peers += ["flash", "flash in place"]
    return losses, peers


class Device:
    def __init__(self, name):
        self.name, self.cuda = name, name != "cpu"

    def wait(self):
        if self.cuda:
            torch.cuda.synchronize()

    def peak(self, begin):
        return torch.cuda.max_memory_allocated() - begin if self.cuda else 0

    def memory(self):
        if not self.cuda:
            return 0
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()


def once(device, loss, base, labels):
    """Milliseconds of one call with its backward pass, those until it came back to the caller, bytes at the peak, and the loss."""
    source = base.clone().requires_grad_()
    logits = source.view_as(source)
    device.wait()
    memory = device.memory()
    begin = time.perf_counter()
    value = loss(logits, labels)
    value.backward()
    returned = time.perf_counter()
    device.wait()
    end = time.perf_counter()
    return (end - begin) * 1e3, (returned - begin) * 1e3, device.peak(memory), value.item()


def measure(device, losses, gauge, rows, columns, rounds):
    torch.manual_seed(7)
    base = torch.randn(rows, columns, device=device.name, dtype=torch.bfloat16 if device.cuda else torch.float32)
    labels = torch.randint(0, columns, (rows,), device=device.name)
    labels[::4] = -100
    samples = {name: [] for name in losses}
    order = list(losses)
    for number in range(-3, rounds):  # the first ones compile kernels and fill caches
        random.shuffle(order)
        for name in order:
            sample = once(device, losses[name], base, labels)
            if number >= 0:
                samples[name].append(sample)
        gauge.step()
    values = [given[0][3] for given in samples.values()]
    if max(values) - min(values) > 0.05 * abs(values[0]):
        sys.exit("losses differ: {}".format(dict(zip(samples, values))))
    size = base.numel() * base.element_size()
    return {name: (statistics.median(s[0] for s in given), statistics.median(s[1] for s in given), max(s[2] for s in given) / size)
            for name, given in samples.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    device = Device(options.device)
    with tempfile.TemporaryDirectory() as directory, lossgauge.Gauge(run="bench", ring_dir=directory) as gauge:
        losses, peers = make_losses(gauge)
        print("ms, forward and backward (in brackets: until it came back to the caller; memory beyond the logits). torch {}, {}".format(
            torch.__version__, torch.cuda.get_device_name() if device.cuda else "CPU"))
        print("\n| shape | " + " | ".join(losses) + (" | best of theirs / lossgauge | / in place |" if peers else " |"))
        print("| --- |" + " --- |" * (len(losses) + (2 if peers else 0)))
        for shape in options.shapes.split(","):
            rows, columns = (int(part) for part in shape.split("x"))
            found = measure(device, losses, gauge, rows, columns, options.rounds)
            cells = ["{:.3f} ({:.3f}; {:.2f})".format(*found[name]) for name in losses]
            if peers:
                best = min(found[name][0] for name in peers)
                cells += ["{:.2f}".format(best / found[name][0]) for name in ("lossgauge", "lossgauge in place")]
            print("| {} | ".format(shape) + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
