"""A loss that was computed elsewhere, as the library takes it."""

from . import library
from .arguments import count, host_number, integer, refuse


def observation(loss_sum, tokens, positions, nonfinite_rows, denominator, block):
    """lg_observation, and the tensors that are read on their device, which must outlive the call that takes it. Arguments as those of Gauge.observe."""
    seen = library.new("observation")
    seen.block = -1 if block is None else integer("block", block, 32)
    kept = [_read_on_device(name, value, dtype) for name, value, dtype in (
        ("loss_sum", loss_sum, "float64"), ("tokens", tokens, "int64"), ("denominator", denominator, "float64"))]
    of_loss, of_tokens, of_denominator = kept
    if of_loss is None:
        seen.nll_sum = host_number("loss_sum", loss_sum)
    if of_tokens is None:
        seen.unmasked_tokens = count("tokens", tokens)
    if of_denominator is None:
        seen.denominator = host_number("denominator", denominator)
    seen.nll_sum_pointer, seen.unmasked_tokens_pointer, seen.denominator_pointer = (None if value is None else value.data_ptr() for value in kept)
    seen.tokens = seen.unmasked_tokens if positions is None else count("positions", positions)
    seen.nonfinite_rows = integer("nonfinite_rows", nonfinite_rows)
    return seen, [value for value in kept if value is not None]


def _read_on_device(name, value, dtype):
    """A one-element tensor of a device in the type that is read there; None for what the host reads."""
    if not getattr(value, "is_cuda", False):
        return None
    if value.numel() != 1:
        refuse(name, "a number or one element", "{} elements".format(value.numel()))
    import torch

    return value.detach().to(getattr(torch, dtype)).reshape(())
