#!/usr/bin/env python3
"""Vocabulary-parallel losses of PyTorch on two GPUs, forward and backward to the gradient of the logits, each rank with half of the columns: lossgauge through
Python and through the C ABI over its own NCCL communicator, with and without a gauge that counts every signal, and Megatron-LM's and TransformerEngine's where
their sources are given. bf16 logits, every label counts, mean over the rows.

  LOSSGAUGE_LIBRARY=.../liblossgauge.so.0 PYTHONPATH=client/python tests/bench/vocab_parallel_bench.py
  LOSSGAUGE_MEGATRON: a directory that holds megatron. LOSSGAUGE_TRANSFORMER_ENGINE: directories that hold transformer_engine, separated by ':'; each is called
  by its name.

Before anything is timed, each loss and gradient is compared with those of lossgauge. Rounds are interleaved, each in an order of its own, equal on both ranks.
Each call works on a copy of the logits: many take their memory for the gradient. Times are of the device, between events, from a moment at which all ranks have
arrived and the host is ahead, as it is in a training step; of the slower rank. Memory is what a call takes at its peak beyond the logits, as a multiple of the
rank's logits (2 bytes an element); once for each loss, also what its first call took of the device outside of torch's allocator (communicators, code).

--device cpu: the same over gloo, for a test of this file.
"""
import argparse
import contextlib
import ctypes
import datetime
import importlib
import os
import random
import statistics
import sys
import tempfile
import time

import torch
import torch.multiprocessing as multiprocessing

import lossgauge
from lossgauge import library, tensors

SHAPES = "8192x131072,4096x256000,8192x32000"
RANKS = 2
OURS = ("Python, gauge", "C, gauge")  # what others are compared with


@contextlib.contextmanager
def sources(directory, package):
    """Imports of `package` find it in `directory`; afterwards another one of the same name may be imported."""
    sys.path.insert(0, directory)
    try:
        yield
    finally:
        sys.path.remove(directory)
        for name in [name for name in sys.modules if name.split(".")[0] == package]:
            del sys.modules[name]


def in_python(call):
    """A loss that autograd differentiates, as run(logits, labels) -> (loss, gradient)."""

    def run(logits, labels):
        leaf = logits.requires_grad_()
        loss = call(leaf.view_as(leaf), labels)
        loss.backward()
        return loss.detach(), leaf.grad

    return run


class Group:
    """A rank's place in the group, and the communicator of the C ABI."""

    def __init__(self, rank, device):
        self.rank, self.device = rank, device
        self.handle = torch.distributed.group.WORLD
        self.communicator = None
        if device.type == "cpu":
            return
        functions = library.load()
        functions.lg_communicator_open.argtypes = [ctypes.c_void_p, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)]
        functions.lg_vocab_parallel_cross_entropy.argtypes = [ctypes.c_void_p] * 3
        number = ctypes.create_string_buffer(128)
        if rank == 0:
            library.call("communicator_unique_id", number)
        shared = torch.tensor(list(number.raw), dtype=torch.uint8, device=device)
        torch.distributed.broadcast(shared, 0)
        number.raw = bytes(shared.tolist())
        self.communicator = ctypes.c_void_p()
        library.call("communicator_open", number, RANKS, rank, ctypes.byref(self.communicator))

    def close(self):
        if self.communicator is not None:
            library.call("communicator_close", self.communicator)

    def in_c(self, gauge):
        """lg_vocab_parallel_cross_entropy in place: begin, exchange, finish."""
        exchange = 0

        def run(logits, labels):
            nonlocal exchange
            exchange += 1
            rows, columns = logits.shape
            args = library.new("vocab_parallel_args")
            args.group_size, args.group_index = RANKS, self.rank
            args.vocab_size, args.shard_offset, args.step = columns * RANKS, columns * self.rank, exchange
            loss = torch.empty((), device=self.device)
            size = ctypes.c_int64()
            library.call("vocab_parallel_contribution_bytes", rows, ctypes.byref(size))
            gathered = torch.empty(RANKS * size.value, dtype=torch.uint8, device=self.device)
            of = args.loss
            of.logits = of.grad_logits = logits.data_ptr()
            of.logits_dtype, of.rows, of.columns = tensors.FLOATS[logits.dtype], rows, columns
            of.targets, of.target_dtype = labels.data_ptr(), tensors.INTEGERS[labels.dtype]
            of.loss = loss.data_ptr()
            of.denominator = float(rows)
            of.stream = torch.cuda.current_stream().cuda_stream
            if gauge is not None:
                of.gauge = gauge._handle_for(self.device)
            library.call("vocab_parallel_cross_entropy", ctypes.byref(args), self.communicator, gathered.data_ptr())
            return loss, logits

        return run


def megatron_losses(group):
    sys.path.insert(0, os.environ["LOSSGAUGE_MEGATRON"])  # for good: torch.compile imports the modules of what it compiles
    plain = importlib.import_module("megatron.core.tensor_parallel.cross_entropy").vocab_parallel_cross_entropy
    fused = importlib.import_module("megatron.core.fusions.fused_cross_entropy").fused_vocab_parallel_cross_entropy
    return {
        "Megatron-LM": in_python(lambda logits, labels: plain(logits, labels, tp_group=group.handle).mean()),
        "Megatron-LM, fused": in_python(lambda logits, labels: fused(logits, labels, group.handle).mean()),
    }


def transformer_engine_loss(directory, group):
    with sources(directory, "transformer_engine"):
        loss = importlib.import_module("transformer_engine.pytorch.cross_entropy").parallel_cross_entropy
    return in_python(lambda logits, labels: loss(logits[None], labels[None], 0.0, True, group.handle).sum())


def make_losses(group, gauge, vocab):
    def ours(logits, labels, **options):
        return lossgauge.vocab_parallel_cross_entropy(logits, labels, vocab_size=vocab, **options)

    losses = {
        "Python": in_python(lambda logits, labels: ours(logits, labels, inplace=True)),
        "Python, gauge": in_python(lambda logits, labels: ours(logits, labels, inplace=True, gauge=gauge)),
        "Python, gauge, not in place": in_python(lambda logits, labels: ours(logits, labels, gauge=gauge)),
    }
    if group.device.type != "cpu":
        losses["C"] = group.in_c(None)
        losses["C, gauge"] = group.in_c(gauge)
    if os.environ.get("LOSSGAUGE_MEGATRON"):
        losses.update(megatron_losses(group))
    for directory in filter(None, os.environ.get("LOSSGAUGE_TRANSFORMER_ENGINE", "").split(":")):
        losses["TransformerEngine, " + os.path.basename(directory.rstrip("/"))] = transformer_engine_loss(directory, group)
    return losses


class Clock:
    """Milliseconds of a call, and bytes at its peak."""

    def __init__(self, device):
        self.cuda = device.type != "cpu"
        self.arrival = torch.zeros(1, device=device)
        if self.cuda:
            self.begin, self.end = (torch.cuda.Event(enable_timing=True) for _ in range(2))

    def measure(self, call):
        if not self.cuda:
            torch.distributed.all_reduce(self.arrival)
            begin = time.perf_counter()
            call()
            return (time.perf_counter() - begin) * 1e3, 0
        torch.cuda.reset_peak_memory_stats()
        memory = torch.cuda.memory_allocated()
        torch.cuda._sleep(4_000_000)  # some 2 ms, in which the host enqueues the call
        torch.distributed.all_reduce(self.arrival)
        self.begin.record()
        call()
        self.end.record()
        torch.cuda.synchronize()
        return self.begin.elapsed_time(self.end), torch.cuda.max_memory_allocated() - memory


def first_call(device, loss, logits, labels):
    """Loss, gradient, and bytes that the call took of the device beside torch's allocator."""

    def outside():
        if device.type == "cpu":
            return 0
        torch.cuda.synchronize()
        free, total = torch.cuda.mem_get_info()
        return total - free - torch.cuda.memory_reserved()

    before = outside()
    value, gradient = loss(logits, labels)
    return value, gradient, outside() - before


def check(name, value, gradient, expected, expected_gradient):
    """Gradients are rounded to 8 bits once or, where they are scaled afterwards, twice."""
    rows = gradient.shape[0]
    wrong = 0
    for part in range(0, rows, 1024):
        ours, theirs = expected_gradient[part:part + 1024].float(), gradient[part:part + 1024].float()
        wrong += int(((theirs - ours).abs() > 2**-6 * ours.abs() + 1e-9 / rows).sum())
    if not abs(value.item() - expected.item()) <= 1e-4 * abs(expected.item()) or wrong:
        sys.exit("{}: loss {}, of lossgauge {}; {} of {} gradients differ".format(name, value.item(), expected.item(), wrong, gradient.numel()))


def measure(group, gauge, rows, vocab, rounds):
    """Name -> (ms of the slower rank in each round, most bytes, bytes outside of torch's allocator), and the bytes of a rank's logits."""
    device = group.device
    columns = vocab // RANKS
    torch.manual_seed(7)
    labels = torch.randint(0, vocab, (rows,), device=device)
    torch.manual_seed(8 + group.rank)
    base = torch.randn(rows, columns, device=device, dtype=torch.bfloat16)
    clock = Clock(device)
    if hasattr(torch, "_dynamo"):
        torch._dynamo.reset()  # compiled losses are made for the shape
    losses = make_losses(group, gauge, vocab)
    outside = {}
    expected = None
    for name, loss in losses.items():
        value, gradient, outside[name] = first_call(device, loss, base.clone(), labels)
        expected = expected or (value, gradient)
        check(name, value, gradient, *expected)
        del gradient
    expected = None
    order, shuffle = list(losses), random.Random(7)
    samples = {name: [] for name in losses}
    for number in range(-2, rounds):
        shuffle.shuffle(order)
        for name in order:
            logits = base.clone()
            sample = clock.measure(lambda: losses[name](logits, labels))
            del logits
            if number >= 0:
                samples[name].append(sample)
        gauge.step()
    found = {}
    for name, given in samples.items():
        slower = torch.tensor([ms for ms, _ in given], dtype=torch.float64, device=device)
        torch.distributed.all_reduce(slower, op=torch.distributed.ReduceOp.MAX)
        found[name] = slower.tolist(), max(taken for _, taken in given), outside[name]
    return found, base.numel() * base.element_size()


def spread(values):
    """Median (10 % to 90 %)."""
    values = sorted(values)
    at = [values[round(share * (len(values) - 1))] for share in (0.1, 0.9)]
    return "{:.3f} ({:.3f} to {:.3f})".format(statistics.median(values), *at)


def report(rows, vocab, found, size):
    ours = [name for name in OURS if name in found]
    print("\n{} x {}, of it {} columns a rank\n".format(rows, vocab, vocab // RANKS))
    print("| loss | ms | memory | outside torch, MiB |" + "".join(" times of {} |".format(name) for name in ours))
    print("| --- |" + " --- |" * (3 + len(ours)))
    for name, (ms, memory, outside) in found.items():
        cells = [name, spread(ms), "{:.2f}".format(memory / size), "{:.0f}".format(outside / 2**20)]
        cells += [spread([one / other for one, other in zip(ms, found[of][0])]) for of in ours]
        print("| " + " | ".join(cells) + " |", flush=True)


def run_rank(rank, options, directory):
    cuda = options.device != "cpu"
    torch.set_num_threads(1)
    if cuda:
        torch.cuda.set_device(rank)
    device = torch.device("cuda", rank) if cuda else torch.device("cpu")
    torch.distributed.init_process_group(
        "nccl" if cuda else "gloo", init_method="file://{}/rendezvous".format(directory), rank=rank, world_size=RANKS, timeout=datetime.timedelta(seconds=60))
    torch.distributed.all_reduce(torch.zeros(1, device=device))  # its communicator is nobody's memory
    group = Group(rank, device)
    for shape in options.shapes.split(","):
        rows, vocab = (int(part) for part in shape.split("x"))
        columns = vocab // RANKS
        with lossgauge.Gauge(run="bench-" + shape, ring_dir=directory, tp=(RANKS, rank), vocab_size=vocab, shard_offset=rank * columns,
                             shard_columns=columns) as gauge:
            found, size = measure(group, gauge, rows, vocab, options.rounds)
            if not gauge.state().telemetry_on:
                sys.exit("no telemetry: " + gauge.state().message)
        if rank == 0:
            report(rows, vocab, found, size)
    group.close()
    torch.distributed.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--shapes", default=SHAPES, help="rows x columns over both ranks")
    parser.add_argument("--rounds", type=int, default=21)
    options = parser.parse_args()
    if options.device == "cuda" and torch.cuda.device_count() < RANKS:
        sys.exit("expected {} GPUs, got {}".format(RANKS, torch.cuda.device_count()))
    print("{} ranks; median (10 % to 90 %) of {} rounds. torch {}, {}".format(
        RANKS, options.rounds, torch.__version__, torch.cuda.get_device_name() if options.device == "cuda" else "CPU"))
    for variable, what in (("LOSSGAUGE_MEGATRON", "Megatron-LM"), ("LOSSGAUGE_TRANSFORMER_ENGINE", "TransformerEngine")):
        if not os.environ.get(variable):
            print("skipped: {} ({} is not set)".format(what, variable))
    sys.stdout.flush()
    with tempfile.TemporaryDirectory() as directory:
        multiprocessing.spawn(run_rank, (options, directory), RANKS)


if __name__ == "__main__":
    main()
