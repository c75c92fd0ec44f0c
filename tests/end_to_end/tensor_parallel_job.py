"""A job whose vocabulary is spread over two ranks, by torch and gloo, until it is stopped; the exchange goes wrong from a step on.

    tensor_parallel_job.py RING_DIR RUN FAULT_STEP      (PYTHONPATH: client/python; LOSSGAUGE_LIBRARY)

What breaks is what a collective library with a bug does: the second rank is handed the contributions of the step before.
"""

import os
import sys
import tempfile
import time

import torch
import torch.multiprocessing as multiprocessing

import lossgauge

RANKS, VOCABULARY, TOKENS, WIDTH = 2, 1000, 256, 32
SHARD = VOCABULARY // RANKS


class StaleGather:
    """Stands in for torch.distributed.all_gather."""

    def __init__(self):
        self.gather = torch.distributed.all_gather
        self.stale = False
        self.before = None

    def __call__(self, parts, own, group=None):
        self.gather(parts, own, group=group)
        if own.numel() <= 2:  # the sizes, which are agreed on first
            return
        fresh = [part.clone() for part in parts]
        if self.stale and self.before is not None:
            for part, old in zip(parts, self.before):
                part.copy_(old)
        self.before = fresh


def train(rank, ring_dir, run, fault_step, meeting):
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank))
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    exchange = torch.distributed.all_gather = StaleGather()
    torch.manual_seed(1)
    table, head = torch.randn(VOCABULARY, WIDTH), torch.randn(WIDTH, VOCABULARY)[:, rank * SHARD:(rank + 1) * SHARD].clone().requires_grad_()
    optimizer = torch.optim.SGD([head], lr=0.5)
    gauge = lossgauge.Gauge(run=run, attempt="1", ring_dir=ring_dir, tp=(RANKS, rank), vocab_size=VOCABULARY, shard_offset=rank * SHARD, shard_columns=SHARD)
    step = 0
    while True:
        exchange.stale = rank == 1 and step >= fault_step
        tokens = torch.randint(0, VOCABULARY, (TOKENS,))
        optimizer.zero_grad()
        gauge.vocab_parallel_cross_entropy(table[tokens] @ head, (tokens + 1) % VOCABULARY, shard_offset=rank * SHARD).backward()
        if bool(torch.isfinite(head.grad).all()):
            optimizer.step()
        gauge.step()
        step += 1
        time.sleep(0.02)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        multiprocessing.spawn(train, (sys.argv[1], sys.argv[2], int(sys.argv[3]), os.path.join(directory, "meeting")), nprocs=RANKS)
