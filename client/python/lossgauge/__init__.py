"""lossgauge: cross-entropy for LLM training that can be read like a gauge.

    import lossgauge
    gauge = lossgauge.Gauge(run="llama8b-sft")
    ...
    loss = gauge.cross_entropy(logits, labels)      # instead of torch.nn.functional.cross_entropy
    ...
    gauge.step(grad_norm=norm)

Importing needs neither torch nor the library; the first call loads them.
"""

import importlib

from .errors import Error, FailedPrecondition, InvalidArgument, Unimplemented
from .library import cpu_variant, version

__all__ = [
    "Error", "FailedPrecondition", "Gauge", "InvalidArgument", "Unimplemented", "Verdict", "byte_table", "cpu_variant", "cross_entropy",
    "linear_cross_entropy", "observe_logits", "pack_labels", "version", "vocab_parallel_cross_entropy",
    "vocab_parallel_linear_cross_entropy",
]

_MODULE_OF = {
    "Gauge": "gauge",
    "Verdict": "verdict",
    "byte_table": "token_bytes",
    "cross_entropy": "loss_on_logits",
    "linear_cross_entropy": "loss_on_hidden",
    "observe_logits": "loss_on_logits",
    "pack_labels": "packing",
    "vocab_parallel_cross_entropy": "vocab_parallel",
    "vocab_parallel_linear_cross_entropy": "vocab_parallel_head",
}


def __getattr__(name):
    if name not in _MODULE_OF:
        raise AttributeError("module 'lossgauge' has no attribute {!r}".format(name))
    value = getattr(importlib.import_module("." + _MODULE_OF[name], __name__), name)
    globals()[name] = value
    return value


def __dir__():
    return sorted(__all__)
