"""Where the tests make their tensors: LOSSGAUGE_TEST_DEVICE, "cpu" (default) or "cuda", which needs torch 2."""

import datetime
import os
import tempfile

import torch
import torch.multiprocessing as multiprocessing

DEVICE = os.environ.get("LOSSGAUGE_TEST_DEVICE", "cpu")
ON_CUDA = DEVICE != "cpu"
if ON_CUDA:
    torch.set_default_device(DEVICE)  # of every tensor that names no device, in this process and in those that import this module anew


def join_group(rank, world, directory, backend=None):
    """The default process group of a test's ranks, which meet at a file: a port that was free a moment ago may be another test's by now. NCCL where each rank
    has a GPU for itself, else gloo. Returns the backend."""
    torch.set_num_threads(1)
    if backend is None:
        backend = "nccl" if ON_CUDA and torch.cuda.device_count() >= world else "gloo"
    if backend == "nccl":
        torch.cuda.set_device(rank)
    torch.distributed.init_process_group(
        backend, init_method="file://{}/rendezvous".format(directory), rank=rank, world_size=world, timeout=datetime.timedelta(seconds=60))
    return backend


def leave_group():
    torch.distributed.barrier(**{"device_ids": [torch.cuda.current_device()]} if torch.distributed.get_backend() == "nccl" else {})
    torch.distributed.destroy_process_group()


def run_ranks(test, world, body):
    """Runs body(rank, world, directory, results) in a process for each rank, in a process group of their own. What they have put into `results`."""
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as directory, context.Manager() as manager:
        results = manager.dict()
        ranks = [context.Process(target=_start, args=(rank, world, directory, body, results)) for rank in range(world)]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
            test.assertEqual(0, process.exitcode)
        return dict(results)


def _start(rank, world, directory, body, results):
    join_group(rank, world, directory)
    body(rank, world, directory, results)
    leave_group()
