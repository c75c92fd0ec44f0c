"""Where this process stands among the ranks of its job, from torch.distributed where it is up."""

import collections
import os
import sys
import time

Shared = collections.namedtuple("Shared", "rank world_size attempt start_wall_ns")

# What names an attempt by itself; the library reads these.
_ATTEMPT_VARIABLES = ("LOSSGAUGE_ATTEMPT", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID")


def process_group_is_up():
    """Whether torch.distributed is initialised, without importing torch for the question."""
    torch = sys.modules.get("torch")
    distributed = getattr(torch, "distributed", None)
    return distributed is not None and distributed.is_available() and distributed.is_initialized()


def distributed_defaults(rank, world_size, attempt):
    """Rank, world size and attempt where they are not given. None: the library's own default.

    A job of several ranks whose launcher names no attempt gets one from rank 0, by one broadcast in which all ranks take part.
    """
    if not process_group_is_up():
        return Shared(rank, world_size, attempt, 0)
    import torch.distributed as distributed

    whole_world = rank is None and world_size is None
    rank = distributed.get_rank() if rank is None else rank
    world_size = distributed.get_world_size() if world_size is None else world_size
    start = 0
    if attempt is None and whole_world and world_size > 1 and not any(os.environ.get(name) for name in _ATTEMPT_VARIABLES):
        start = time.time_ns()
        said = [("{:x}".format(start), start)]
        distributed.broadcast_object_list(said, src=0)
        attempt, start = said[0]
    return Shared(rank, world_size, attempt, start)
