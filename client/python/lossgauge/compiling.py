"""Whether torch.compile traces the caller, and how a call that no graph can hold steps out of it."""

try:
    import torch
except ImportError:  # a gauge can do without
    torch = None

# From torch 2.4 on losses are operators of their own (graph_ops.py); before that, and for everything else, the graph breaks at the call.
HAS_OPERATORS = torch is not None and hasattr(torch.library, "custom_op")

if HAS_OPERATORS:
    is_compiling = torch.compiler.is_compiling
elif torch is not None and hasattr(torch, "compile"):
    import torch._dynamo

    is_compiling = torch._dynamo.is_compiling
else:

    def is_compiling():
        return False
