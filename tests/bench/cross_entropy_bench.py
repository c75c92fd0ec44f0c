#!/usr/bin/python3
"""Forward and gradient of liblossgauge's CPU backend, with a gauge open and every signal on, against PyTorch's own CPU cross_entropy
(forward and backward), fp32, the same number of threads, interleaved in one run. Also against the same kernel without signals, and against the
speed of copying as many bytes (the physical limit: logits read once, gradient written once).

  LD_LIBRARY_PATH is not needed: give the library.   cross_entropy_bench.py build/cpu/lib/liblossgauge.so [--rounds 9] [--require 6]

PyTorch gives large blocks back to the kernel after each call and pays for fresh pages in the next one. The second column of PyTorch runs in a process
whose malloc keeps them (MALLOC_MMAP_THRESHOLD_, MALLOC_TRIM_THRESHOLD_, MALLOC_TOP_PAD_), which is the fairest it can have.
"""
import argparse
import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time

SHAPES = [(512, 32000), (256, 128256)]
REUSE = {"MALLOC_MMAP_THRESHOLD_": str(4 << 30), "MALLOC_TRIM_THRESHOLD_": str(8 << 30), "MALLOC_TOP_PAD_": str(256 << 20)}


class Args(ctypes.Structure):
    """lg_cross_entropy_args, field for field."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("logits", ctypes.c_void_p), ("logits_dtype", ctypes.c_int32),
        ("rows", ctypes.c_int64), ("columns", ctypes.c_int64), ("row_stride", ctypes.c_int64), ("vocab_size", ctypes.c_int64),
        ("targets", ctypes.c_void_p), ("target_dtype", ctypes.c_int32), ("target_stride", ctypes.c_int64),
        ("ignore_index", ctypes.c_int64), ("label_smoothing", ctypes.c_double), ("z_loss_weight", ctypes.c_double),
        ("logit_scale", ctypes.c_double), ("logit_softcap", ctypes.c_double), ("reduction", ctypes.c_int32),
        ("denominator", ctypes.c_double), ("denominator_pointer", ctypes.c_void_p), ("losses", ctypes.c_void_p),
        ("log_z", ctypes.c_void_p), ("loss", ctypes.c_void_p), ("grad_logits", ctypes.c_void_p),
        ("grad_row_stride", ctypes.c_int64), ("upstream", ctypes.c_void_p), ("upstream_stride", ctypes.c_int64),
        ("grad_scale", ctypes.c_void_p), ("gauge", ctypes.c_void_p), ("block", ctypes.c_int32),
        ("position_base", ctypes.c_int64), ("positions", ctypes.c_void_p), ("stream", ctypes.c_void_p),
        ("threads", ctypes.c_int32),
    ]


class Axis(ctypes.Structure):
    _fields_ = [("size", ctypes.c_int32), ("index", ctypes.c_int32)]


class Options(ctypes.Structure):
    """lg_gauge_options, field for field."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("run", ctypes.c_char_p), ("attempt", ctypes.c_char_p),
        ("attempt_start_wall_ns", ctypes.c_int64), ("rank", ctypes.c_int32), ("world_size", ctypes.c_int32),
        ("dp", Axis), ("tp", Axis), ("pp", Axis), ("cp", Axis), ("ep", Axis), ("has_loss", ctypes.c_int32),
        ("gradient_reduction", ctypes.c_int32), ("vocab_size", ctypes.c_int64), ("shard_offset", ctypes.c_int64),
        ("shard_columns", ctypes.c_int64), ("label_smoothing", ctypes.c_double), ("z_loss_weight", ctypes.c_double),
        ("ring_dir", ctypes.c_char_p), ("group", ctypes.c_char_p), ("token_bytes", ctypes.c_void_p),
        ("block_names", ctypes.c_void_p), ("block_count", ctypes.c_int32), ("first_step", ctypes.c_int64),
    ]


def open_gauge(library, ring_dir, vocab):
    options = Options()
    library.lg_gauge_options_init(ctypes.byref(options))
    if options.struct_size != ctypes.sizeof(options):
        sys.exit(f"lg_gauge_options: the library has {options.struct_size} bytes, this script {ctypes.sizeof(options)}")
    table = (ctypes.c_uint8 * vocab)(*([4] * vocab))
    options.run, options.attempt, options.rank, options.world_size = b"bench", b"1", 0, 1
    options.vocab_size, options.ring_dir = vocab, ring_dir.encode()
    options.token_bytes = ctypes.cast(table, ctypes.c_void_p)
    gauge = ctypes.c_void_p()
    code = library.lg_gauge_open(ctypes.byref(options), ctypes.byref(gauge))
    if code != 0:
        sys.exit(f"lg_gauge_open: {library.lg_last_error().decode()}")
    return gauge


def measure(options, clock):
    import torch

    library = ctypes.CDLL(options.library)
    library.lg_last_error.restype = library.lg_cpu_variant.restype = ctypes.c_char_p
    library.lg_gauge_publish.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.lg_gauge_close.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    results = []
    for rows, vocab in SHAPES:
        torch.manual_seed(7)
        logits = torch.randn(rows, vocab)
        leaf = logits.clone().requires_grad_(True)
        targets = torch.randint(0, vocab, (rows,))
        grad = torch.empty_like(logits)
        loss = torch.empty(1)
        with tempfile.TemporaryDirectory() as ring_dir:
            gauge = open_gauge(library, ring_dir, vocab)
            for threads in (1, 2):
                torch.set_num_threads(threads)
                args = Args()
                library.lg_cross_entropy_args_init(ctypes.byref(args))
                if args.struct_size != ctypes.sizeof(args):
                    sys.exit(f"lg_cross_entropy_args: the library has {args.struct_size} bytes, this script {ctypes.sizeof(args)}")
                args.logits, args.targets = logits.data_ptr(), targets.data_ptr()
                args.rows, args.columns, args.threads = rows, vocab, threads
                args.grad_logits, args.loss = grad.data_ptr(), loss.data_ptr()

                def ours(with_gauge):
                    args.gauge = gauge if with_gauge else None
                    if library.lg_cross_entropy(ctypes.byref(args)) != 0:
                        sys.exit(library.lg_last_error().decode())
                    if with_gauge:
                        library.lg_gauge_publish(gauge, None)

                def theirs():
                    leaf.grad = None
                    torch.nn.functional.cross_entropy(leaf, targets).backward()

                calls = {"signals": lambda: ours(True), "silent": lambda: ours(False), "torch": theirs, "copy": lambda: grad.copy_(logits)}
                times = {name: [] for name in calls}
                for call in calls.values():
                    call()
                for _ in range(options.rounds):
                    for name, call in calls.items():
                        time.sleep(0.02)  # PyTorch's OpenMP threads spin for a while after their work
                        begin = clock()
                        call()
                        times[name].append(clock() - begin)
                # The two must agree, or the race is for nothing.
                ours(True)
                theirs()
                worst = (grad - leaf.grad).abs().max().item()
                if worst > 1e-7:
                    sys.exit(f"gradients differ by {worst}")
                results.append((rows, vocab, threads, {name: statistics.median(t) * 1e3 for name, t in times.items()}))
            library.lg_gauge_close(gauge, b"done")
    return library.lg_cpu_variant().decode(), results


def make_parser(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=os.path.abspath)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--require", type=float, default=0, help="exit 1 unless every ratio to PyTorch is at least this")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: processor time of all threads, for a busy machine")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    return parser


def measure_with_each_malloc(measure, options):
    """What measure(options, clock) gives in a process with the default malloc and in one whose malloc keeps large blocks; None in such a process."""
    if options.child:
        print(repr(measure(options, time.perf_counter if options.clock == "wall" else time.process_time)))
        return None
    tables = []
    for extra in ({}, REUSE):
        out = subprocess.run([sys.executable, *sys.argv, "--child"], env={**os.environ, **extra}, check=True, stdout=subprocess.PIPE, text=True).stdout
        tables.append(eval(out.strip().splitlines()[-1]))  # our own repr
    return tables


def report_lowest(lowest, options):
    print(f"lowest ratio {lowest:.2f}")
    if lowest < options.require:
        sys.exit(f"slower than {options.require} times PyTorch")


def main():
    options = make_parser(__doc__).parse_args()
    tables = measure_with_each_malloc(measure, options)
    if tables is None:
        return
    variant = tables[0][0]
    print(f"fp32 forward + gradient, median of {options.rounds} interleaved rounds, ms of {options.clock} time; variant {variant}")
    print(f"{'shape':>14} {'threads':>7} {'malloc':>8} {'lossgauge':>10} {'no signals':>10} {'copy':>7} {'torch':>8} {'ratio':>6}")
    lowest = float("inf")
    for label, (_, results) in zip(("default", "reuse"), tables):
        for rows, vocab, threads, ms in results:
            ratio = ms["torch"] / ms["signals"]
            lowest = min(lowest, ratio)
            print(f"{rows:>6} x {vocab:<6} {threads:>6} {label:>8} {ms['signals']:>10.2f} {ms['silent']:>10.2f} {ms['copy']:>7.2f} "
                  f"{ms['torch']:>8.1f} {ratio:>6.2f}")
    report_lowest(lowest, options)


if __name__ == "__main__":
    main()
