"""Calls that torch.compile must not trace. Imported while it traces, so that eager programs do not load its compiler for nothing."""

import torch

_REASON = "this call of lossgauge is not part of a graph: it writes telemetry, or the gradient over the logits (inplace=True)"


def _call(function, *arguments, **options):
    return function(*arguments, **options)


def _disabled(function):
    if not hasattr(torch, "compiler"):  # torch 2.0
        return torch._dynamo.disable(function)
    try:
        return torch.compiler.disable(function, reason=_REASON)
    except TypeError:  # before torch 2.7
        return torch.compiler.disable(function)


# run(function, ...) is function(...) outside of any graph; an error under fullgraph=True.
run = _disabled(_call)
