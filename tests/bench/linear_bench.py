#!/usr/bin/python3
"""lg_linear_cross_entropy on the CPU (loss, gradients of hidden states, head and bias, a gauge open and every signal on) against PyTorch's own linear and
cross_entropy, forward and backward, fp32, the same number of threads, interleaved in one run; and against PyTorch's three matrix products alone.

  linear_bench.py build/cpu/lib/liblossgauge.so [--rounds 9] [--require 1.3] [--rows 512 --width 512 --columns 32000]

As in cross_entropy_bench.py, PyTorch runs twice: as it is, and in a process whose malloc keeps large blocks.
"""
import ctypes
import statistics
import sys
import tempfile
import time

import cross_entropy_bench as loss_bench  # beside this file


class Args(ctypes.Structure):
    """lg_linear_cross_entropy_args, field for field."""

    _fields_ = [
        ("struct_size", ctypes.c_size_t), ("hidden", ctypes.c_void_p), ("dtype", ctypes.c_int32), ("logits_dtype", ctypes.c_int32),
        ("rows", ctypes.c_int64), ("width", ctypes.c_int64), ("hidden_stride", ctypes.c_int64), ("weight", ctypes.c_void_p),
        ("columns", ctypes.c_int64), ("weight_stride", ctypes.c_int64), ("bias", ctypes.c_void_p), ("grad_hidden", ctypes.c_void_p),
        ("grad_hidden_stride", ctypes.c_int64), ("grad_weight", ctypes.c_void_p), ("grad_weight_stride", ctypes.c_int64),
        ("grad_bias", ctypes.c_void_p), ("head_grad_dtype", ctypes.c_int32), ("accumulate", ctypes.c_int32),
        ("chunk_rows", ctypes.c_int64), ("memory_budget", ctypes.c_int64), ("workspace", ctypes.c_void_p),
        ("workspace_bytes", ctypes.c_int64), ("most_unmasked_rows", ctypes.c_int64), ("head_grad_signal", ctypes.c_int32),
        ("reserved", ctypes.c_int64 * 8), ("loss", loss_bench.Args),
    ]


class Plan(ctypes.Structure):
    """lg_linear_plan, field for field."""

    _fields_ = [("struct_size", ctypes.c_size_t), ("chunk_rows", ctypes.c_int64), ("chunks", ctypes.c_int64),
                ("workspace_bytes", ctypes.c_int64), ("logits_bytes", ctypes.c_int64)]


def measure(options, clock):
    import torch

    library = ctypes.CDLL(options.library)
    library.lg_last_error.restype = library.lg_cpu_variant.restype = ctypes.c_char_p
    library.lg_gauge_publish.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    library.lg_gauge_close.argtypes = [ctypes.c_void_p, ctypes.c_char_p]
    torch.manual_seed(7)
    rows, width, columns = options.rows, options.width, options.columns
    hidden, weight = torch.randn(rows, width), torch.randn(columns, width) / width**0.5
    bias, targets = torch.randn(columns), torch.randint(0, columns, (rows,))
    leaves = [tensor.clone().requires_grad_(True) for tensor in (hidden, weight, bias)]
    grads = [torch.empty_like(tensor) for tensor in leaves]
    logits, loss = torch.empty(rows, columns), torch.empty(1)
    results = []
    with tempfile.TemporaryDirectory() as ring_dir:
        gauge = loss_bench.open_gauge(library, ring_dir, columns)
        for threads in options.threads:
            torch.set_num_threads(threads)
            args, plan = Args(), Plan()
            library.lg_linear_cross_entropy_args_init(ctypes.byref(args))
            if args.struct_size != ctypes.sizeof(args):
                sys.exit(f"lg_linear_cross_entropy_args: the library has {args.struct_size} bytes, this script {ctypes.sizeof(args)}")
            args.rows, args.width, args.columns = rows, width, columns
            args.hidden, args.weight, args.bias = (tensor.data_ptr() for tensor in (hidden, weight, bias))
            args.grad_hidden, args.grad_weight, args.grad_bias = (tensor.data_ptr() for tensor in grads)
            args.chunk_rows = options.chunk_rows
            args.loss.targets, args.loss.loss = targets.data_ptr(), loss.data_ptr()
            args.loss.threads, args.loss.gauge = threads, gauge
            plan.struct_size = ctypes.sizeof(plan)

            def check(code):
                if code != 0:
                    sys.exit(library.lg_last_error().decode())

            def ours():
                check(library.lg_linear_cross_entropy(ctypes.byref(args)))
                library.lg_gauge_publish(gauge, None)

            def theirs():
                for leaf in leaves:
                    leaf.grad = None
                torch.nn.functional.cross_entropy(torch.nn.functional.linear(*leaves), targets).backward()

            def products():
                torch.mm(hidden, weight.t(), out=logits)
                torch.mm(logits, weight, out=grads[0])
                torch.mm(logits.t(), hidden, out=grads[1])

            calls = {"lossgauge": ours, "torch": theirs, "products": products}
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
            ours()
            theirs()
            for mine, leaf in zip(grads, leaves):
                worst, largest = (mine - leaf.grad).abs().max().item(), leaf.grad.abs().max().item()
                if worst > 1e-4 * largest:
                    sys.exit(f"gradients differ by {worst} of {largest}")
            check(library.lg_linear_cross_entropy_plan(ctypes.byref(args), ctypes.byref(plan)))
            ratio = statistics.median(a / b for a, b in zip(times["torch"], times["lossgauge"]))
            to_products = statistics.median(a / b for a, b in zip(times["lossgauge"], times["products"]))
            results.append((threads, plan.chunk_rows, plan.workspace_bytes, {name: statistics.median(t) * 1e3 for name, t in times.items()},
                            ratio, to_products))
        library.lg_gauge_close(gauge, b"done")
    return library.lg_cpu_variant().decode(), results


def main():
    parser = loss_bench.make_parser(__doc__)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--columns", type=int, default=32000)
    parser.add_argument("--chunk_rows", type=int, default=0)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()
    tables = loss_bench.measure_with_each_malloc(measure, options)
    if tables is None:
        return
    print(f"{options.rows} x {options.width} x {options.columns}, fp32, forward + gradients, {options.rounds} interleaved rounds, ms of {options.clock} time, "
          f"ratios are medians of rounds; variant {tables[0][0]}")
    print(f"{'threads':>7} {'malloc':>8} {'chunk':>6} {'MiB':>6} {'lossgauge':>10} {'torch':>8} {'its products':>13} {'ratio':>6} {'to products':>12}")
    lowest = float("inf")
    for label, (_, results) in zip(("default", "reuse"), tables):
        for threads, chunk, workspace, ms, ratio, to_products in results:
            lowest = min(lowest, ratio)
            print(f"{threads:>7} {label:>8} {chunk:>6} {workspace / 2**20:>6.1f} {ms['lossgauge']:>10.1f} {ms['torch']:>8.1f} {ms['products']:>13.1f} "
                  f"{ratio:>6.2f} {to_products:>12.2f}")
    loss_bench.report_lowest(lowest, options)


if __name__ == "__main__":
    main()
