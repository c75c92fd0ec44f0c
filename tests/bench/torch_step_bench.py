#!/usr/bin/env python3
"""Whole training steps of a small transformer in PyTorch (125M parameters, bf16): with lossgauge's loss, every signal and a record each step, against plain
torch without any signal, and against the same signals computed in torch. One model, variants interleaved in an order drawn anew each round, medians.

  LOSSGAUGE_LIBRARY=.../liblossgauge.so.0 PYTHONPATH=client/python tests/bench/torch_step_bench.py

Each step twice: as Python calls it, where the host is most of what so small a model waits for, and as a replayed CUDA graph, which is what the device takes.
Against torch: the median over rounds of the difference within a round, with the interval in which it lies with 95 % by the order of the rounds' differences.
Waits are the CUDA runtime's calls in one profiled step that wait for the device (synchronise, copies to the host), optimizer and gradient norm included.
"""
import argparse
import functools
import math
import random
import statistics
import tempfile
import time

import torch
from torch.nn import functional

import lossgauge


class Layer(torch.nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.mix, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.mix(self.first(x)).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(functional.gelu(self.up(self.second(x))))


class Transformer(torch.nn.Module):
    def __init__(self, layers, width, vocabulary, length):
        super().__init__()
        self.tokens, self.places = torch.nn.Embedding(vocabulary, width), torch.nn.Embedding(length, width)
        self.layers = torch.nn.ModuleList(Layer(width, max(1, width // 64)) for _ in range(layers))
        self.norm = torch.nn.LayerNorm(width)
        self.head = self.tokens.weight  # tied

    def hidden(self, tokens):
        x = self.tokens(tokens) + self.places.weight[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)


class NaiveSignals:
    """The step's signals from the logits and their gradient, each by the torch function that one would write; they stay on the device."""

    def __init__(self):
        self.last = None

    @torch.no_grad()
    def read(self, logits, labels):
        z, kept = logits.float(), labels != -100
        target = labels.clamp(min=0)
        log_z = torch.logsumexp(z, -1)
        nll = log_z - z.gather(-1, target[:, None])[:, 0]
        finite = torch.isfinite(z).all(-1) & kept
        largest, where = z.max(-1)
        self.last = [
            kept.sum(), finite.sum(), (kept & ~finite).sum(), (finite & (where == target)).sum(), largest.max(), torch.where(finite, log_z, -torch.inf).max(),
            torch.where(kept, z.abs().max(-1).values, 0).max(), torch.where(finite, nll, 0).max(0)]
        for each in (nll, log_z, log_z.square(), torch.softmax(z, -1).sum(-1)):
            self.last.append(torch.where(finite, each, 0).sum(dtype=torch.float64))
        if logits.requires_grad:
            logits.register_hook(self.of_gradient)

    def of_gradient(self, gradient):
        self.last += [gradient.float().square().sum(dtype=torch.float64), (~torch.isfinite(gradient)).any(-1).sum()]


class Job:
    def __init__(self, options, gauge):
        torch.manual_seed(3)
        dtype = torch.bfloat16 if options.device != "cpu" else torch.float32
        self.model = Transformer(options.layers, options.width, options.vocabulary, options.length).to(options.device, dtype)
        self.tokens = torch.randint(0, options.vocabulary, (options.batch, options.length + 1), device=options.device)
        self.labels = self.tokens[:, 1:].reshape(-1).clone()
        self.labels[::8] = -100
        fused = {"fused": True, "capturable": True} if options.device != "cpu" else {}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-5, **fused)
        self.rate = torch.full((), 1e-5, device=options.device)
        self.gauge, self.naive = gauge, NaiveSignals()
        self.variants = {"torch": self.of_torch, "torch, fp32 logits": lambda h: functional.cross_entropy(self.logits(h).float(), self.labels),
                         "lossgauge": lambda h: gauge.cross_entropy(self.logits(h), self.labels),
                         "lossgauge in place": lambda h: gauge.cross_entropy(self.logits(h), self.labels, inplace=True),
                         "lossgauge linear": lambda h: gauge.linear_cross_entropy(h, self.model.head, self.labels),
                         "torch, signals in torch": self.with_naive_signals}

    def logits(self, hidden):
        return functional.linear(hidden, self.model.head)

    def of_torch(self, hidden):
        return functional.cross_entropy(self.logits(hidden), self.labels)

    def with_naive_signals(self, hidden):
        logits = self.logits(hidden)
        self.naive.read(logits, self.labels)
        return functional.cross_entropy(logits, self.labels)

    def step(self, name):
        hidden = self.model.hidden(self.tokens[:, :-1])
        loss = self.variants[name](hidden.view(-1, hidden.shape[-1]))
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        if name.startswith("lossgauge"):
            self.gauge.step(grad_norm=norm, lr=self.rate)
        return loss.detach()

    def captured(self, name):
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(2):
                self.step(name)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=side):
            self.step(name)
        return graph.replay


def waits_of(job, name):
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]) as profile:
        with torch.profiler.record_function("one step"):
            job.step(name)
        torch.cuda.synchronize()
    events = profile.events()
    span = next(event.time_range for event in events if event.name == "one step")
    inside = [event.name for event in events if span.start <= event.time_range.start <= span.end]
    return sum("Synchronize" in name or name == "cudaMemcpy" or name == "aten::_local_scalar_dense" for name in inside)


def measure(steps, options, wait):
    """ms a step of each round, by variant; and the peak of torch's memory, GiB."""
    cuda = options.device != "cpu"
    times, peaks, order = {name: [] for name in steps}, {}, list(steps)
    for number in range(-1, options.rounds):
        random.shuffle(order)
        for name in order:
            if cuda:
                torch.cuda.reset_peak_memory_stats()
            wait()
            begin = time.perf_counter()
            for _ in range(options.steps):
                steps[name]()
            wait()
            if number >= 0:
                times[name].append((time.perf_counter() - begin) / options.steps * 1e3)
                peaks[name] = torch.cuda.max_memory_allocated() / 2**30 if cuda else 0
    return times, peaks


def median_and_interval(values):
    """The median, and the values between which it lies with 95 % or more: ranks of a fair coin's throws."""
    values, n = sorted(values), len(values)
    below, mass = 0, 0.5**n
    while mass <= 0.025:
        below += 1
        mass += math.comb(n, below) * 0.5**n
    below = max(0, below - 1)
    return statistics.median(values), values[below], values[n - 1 - below]


def table(title, times, columns):
    print("\n{}\n\n| loss | ms per step (lowest to highest) | against torch (95 %) | {} |".format(title, " | ".join(columns)))
    print("| --- | --- | --- |" + " --- |" * len(columns))
    for name, given in times.items():
        differences = median_and_interval([one - plain for one, plain in zip(given, times["torch"])])
        print("| {} | {:.2f} ({:.2f} to {:.2f}) | {:+.2f} ms ({:+.2f} to {:+.2f}) | {} |".format(
            name, statistics.median(given), min(given), max(given), *differences, " | ".join(str(values[name]) for values in columns.values())), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda")
    for name, value in (("layers", 12), ("width", 768), ("vocabulary", 50304), ("length", 1024), ("batch", 8), ("rounds", 15), ("steps", 5)):
        parser.add_argument("--" + name, type=int, default=value)
    options = parser.parse_args()
    cuda = options.device != "cpu"
    wait = torch.cuda.synchronize if cuda else lambda: None
    with tempfile.TemporaryDirectory() as directory, lossgauge.Gauge(run="bench", ring_dir=directory) as gauge:
        job = Job(options, gauge)
        parameters = sum(parameter.numel() for parameter in job.model.parameters())
        print("{:.0f}M parameters, {} x {} tokens, vocabulary {}, {} rounds of {} steps. torch {}, {}".format(
            parameters / 1e6, options.batch, options.length, options.vocabulary, options.rounds, options.steps, torch.__version__,
            torch.cuda.get_device_name() if cuda else "CPU"))
        times, peaks = measure({name: functools.partial(job.step, name) for name in job.variants}, options, wait)
        memory = {name: "{:.2f}".format(peak) for name, peak in peaks.items()}
        table("Called from Python", times, {"waits per step": {name: waits_of(job, name) if cuda else "" for name in times}, "peak memory, GiB": memory})
        if cuda:
            times, _ = measure({name: job.captured(name) for name in job.variants}, options, wait)
            table("Replayed as a graph", times, {})


if __name__ == "__main__":
    main()
