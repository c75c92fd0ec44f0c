"""Whether torch.compile traces the caller, and how a call that no graph can hold steps out of it."""

import importlib
import sys

try:
    import torch
except ImportError:  # a gauge can do without
    torch = None

try:  # what the compiler does with new frames; None: nothing
    from torch._C._dynamo.eval_frame import get_eval_frame_callback as _frames_go_to
except ImportError:
    _frames_go_to = None

# From torch 2.4 on losses are operators of their own (graph_ops.py); before that, and for everything else, the graph breaks at the call.
HAS_OPERATORS = torch is not None and hasattr(torch.library, "custom_op")


def _question():
    """torch's own function that says whether it traces."""
    if HAS_OPERATORS:
        return torch.compiler.is_compiling
    try:
        return importlib.import_module("torch._dynamo").is_compiling
    except (ImportError, AttributeError):  # torch 1, or a build that cannot compile
        return lambda: False


is_compiling = _question()


def _compiler_watches():
    """Whether the compiler looks at the frames that this thread enters. Only known for sure from torch 2.2 on."""
    if "torch._dynamo" not in sys.modules:
        return False
    return _frames_go_to is None or _frames_go_to() is not None


def outside_graphs(function, *arguments, **options):
    """function(...), which the compiler must not trace: the graph breaks there."""
    # A frame in which the compiler finds nothing for a graph runs as it stands, where is_compiling() is false; those that it calls would be traced again.
    if is_compiling() or _compiler_watches():
        from .graph_breaks import run

        return run(function, *arguments, **options)
    return function(*arguments, **options)
