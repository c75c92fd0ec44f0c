"""What a step divides by, over its micro-batches and data-parallel ranks.

The gradient of a step is the sum over all its tokens divided by their number D. A mean of each micro-batch, averaged, is something else as soon as their
numbers of unmasked tokens differ (the mean of means). With R data-parallel ranks whose framework averages gradients (DDP, FSDP), dividing by D / R before it
averages gives the same.
"""

import weakref

from . import abi, errors
from .layout import process_group_is_up


def _ranks(group):
    if not process_group_is_up():
        return 1
    import torch

    return torch.distributed.get_world_size(group)


def count_unmasked(labels, ignore_index=-100, vocab_size=0):
    """Labels that a loss call counts as unmasked, as a one-element fp64 tensor on their device."""
    import torch

    unmasked = (labels != ignore_index) & (labels >= 0)
    if vocab_size:
        unmasked &= labels < vocab_size
    return unmasked.sum(dtype=torch.float64)


class Denominator:
    def __init__(self, gauge):
        self._gauge = weakref.proxy(gauge)  # no cycle: a gauge that is dropped closes at once
        self._of_step = None  # for every loss call until the step ends
        self._counted = None  # unmasked labels of the step's loss calls with reduction="sum"

    def accumulate(self, labels, ignore_index, shift, group):
        import torch

        from .options import shifted

        if isinstance(labels, torch.Tensor):
            labels = [labels]
        if isinstance(labels, (int, float)):
            counted = torch.tensor(float(labels), dtype=torch.float64)
        else:
            labels = list(labels)
            if not labels:
                raise errors.InvalidArgument("labels: expected the labels of at least one micro-batch, got none")
            counts = [count_unmasked(shifted(one, ignore_index) if shift else one, ignore_index, self._gauge.vocab_size) for one in labels]
            counted = torch.stack([one.to(counts[0].device) for one in counts]).sum()
        self._of_step = self._divisor(counted, group)
        return self._of_step

    def complete(self, options):
        """Gives a loss call of the gauge that names no denominator the step's, if there is one."""
        if options.denominator is None and options.reduction == "mean" and self._gauge.in_step(options):
            options.denominator = self._of_step

    def count(self, labels, ignore_index, vocab_size):
        """Labels of a loss call that returns a sum, for scale_gradients."""
        counted = count_unmasked(labels, ignore_index, vocab_size)
        self._counted = counted if self._counted is None else self._counted + counted

    def scale_gradients(self, parameters, group):
        import torch

        if self._counted is None:
            raise errors.FailedPrecondition("scale_gradients: expected loss calls of this gauge with reduction='sum' since the last step, got none")
        parameters = [parameters] if isinstance(parameters, torch.Tensor) else parameters
        divisor = self._divisor(self._counted, group)
        factors = {}
        with torch.no_grad():
            for parameter in parameters:
                if parameter.grad is None:
                    continue
                device = parameter.grad.device
                if device not in factors:
                    # No token at all: gradients are 0, and stay it.
                    factors[device] = torch.where(divisor > 0, 1.0 / divisor, torch.zeros_like(divisor)).to(device=device, dtype=torch.float32)
                parameter.grad.mul_(factors[device])
        if divisor.is_cuda or float(divisor) > 0:
            self._gauge._set_scalar("denominator", abi.DENOMINATOR, divisor)

    def end_step(self):
        self._of_step = self._counted = None

    def _divisor(self, counted, group):
        ranks = _ranks(group)
        if ranks > 1:
            import torch

            if torch.distributed.get_backend(group) == "nccl" and not counted.is_cuda:
                counted = counted.cuda()
            counted = counted.clone()
            torch.distributed.all_reduce(counted, group=group)
            if self._gauge.gradient_reduction == "unknown":
                raise errors.FailedPrecondition(
                    "gradient_reduction: expected 'mean' or 'sum' in a job of {} ranks, got 'unknown': whether the framework averages gradients decides the "
                    "divisor".format(ranks))
        return counted / ranks if self._gauge.gradient_reduction == "mean" else counted
