"""Whether a forward pass runs for the second time, so that a gauge must not count it again (gradient checkpointing)."""

import sys

import torch

# Inside of a backward pass the engine has a task; 1.13 has no such question.
_task = getattr(torch._C, "_current_graph_task_id", None)


def in_recomputation():
    """True while torch.utils.checkpoint runs a forward pass again on behalf of a backward pass."""
    return _task() != -1 if _task is not None else _checkpointing_runs()


def _checkpointing_runs():
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        # CheckpointFunction.backward (re-entrant) and the unpack hook (the other form) are what run a function again.
        if code.co_name in ("backward", "unpack", "unpack_hook") and code.co_filename.endswith("checkpoint.py") and "torch" in code.co_filename:
            return True
        frame = frame.f_back
    return False
