"""The options that every loss call takes, checked and filled into the C ABI's structure."""

import math

import torch

from . import abi, tensors
from .arguments import expect, integer, number, refuse
from .tensors import expect_tensor

REDUCTIONS = {"mean": abi.MEAN, "sum": abi.SUM, "none": abi.NONE}


class LossOptions:
    """Options of one call, in the terms of torch.nn.functional.cross_entropy where they overlap.

    What the library checks (ranges) is left to it; here is what it cannot see: types, shapes, devices, dtypes.
    """

    def __init__(self, *, ignore_index, label_smoothing=0.0, reduction="sum", z_loss=0.0, logit_scale, logit_softcap, denominator=None, grad_scale=None, block,
                 position_base, vocab_size, columns):
        if not isinstance(reduction, str) or reduction not in REDUCTIONS:
            refuse("reduction", "'mean', 'sum' or 'none'", repr(reduction))
        self.ignore_index = integer("ignore_index", ignore_index)
        self.label_smoothing = number("label_smoothing", label_smoothing)
        self.reduction = reduction
        self.z_loss = number("z_loss", z_loss)
        self.logit_scale = number("logit_scale", logit_scale)
        self.logit_softcap = 0.0 if logit_softcap is None else number("logit_softcap", logit_softcap)
        self.denominator = denominator
        if isinstance(grad_scale, torch.Tensor):
            expect_tensor(grad_scale.numel() == 1, "grad_scale", "a number or one element", grad_scale)
        elif grad_scale is not None:
            grad_scale = number("grad_scale", grad_scale)
        self.grad_scale = grad_scale
        self.block = -1 if block is None else integer("block", block, 32)
        self.position_base = position_base  # None: not given
        self.vocab_size = 0 if vocab_size is None else integer("vocab_size", vocab_size)
        expect(vocab_size is None or 0 < self.vocab_size <= columns, "vocab_size", "1 to {}".format(columns), vocab_size)
        if denominator is not None:
            expect(reduction == "mean", "denominator", "reduction='mean', which divides", "reduction={!r}".format(reduction))
            if isinstance(denominator, torch.Tensor):
                expect_tensor(denominator.numel() == 1, "denominator", "one element", denominator)
            else:
                self.denominator = number("denominator", denominator)
                expect(math.isfinite(self.denominator) and self.denominator > 0, "denominator", "a number above 0", denominator)

    @property
    def per_token(self):
        return self.reduction == "none"

    def fill(self, args, labels, device, gauge=None):
        """Fills `args` (lg_cross_entropy_args). Returns the tensors that must live until the call has been made."""
        alive = []
        args.vocab_size = self.vocab_size
        if gauge is not None:
            args.gauge = gauge._handle_for(device)
        args.ignore_index = self.ignore_index
        args.label_smoothing = self.label_smoothing
        args.reduction = REDUCTIONS[self.reduction]
        args.z_loss_weight = self.z_loss
        args.logit_scale = self.logit_scale
        args.logit_softcap = self.logit_softcap
        args.targets = labels.data_ptr()
        args.target_dtype = tensors.INTEGERS[labels.dtype]
        args.target_stride = labels.stride(0) if labels.numel() > 1 else 1
        if isinstance(self.denominator, torch.Tensor):
            alive.append(tensors.scalar_on(self.denominator, device, torch.float64))
            args.denominator_pointer = alive[-1].data_ptr()
        elif self.denominator is not None:
            args.denominator = self.denominator
        if self.grad_scale is not None:
            alive.append(tensors.scalar_on(self.grad_scale, device, torch.float32))
            args.grad_scale = alive[-1].data_ptr()
        args.block = self.block
        args.position_base = integer("position_base", self.position_base or 0)
        tensors.run_on(args, device)
        return alive

    def losses(self, args, rows, device):
        """What the call writes: a loss, or one for each row; entered into `args`."""
        if self.per_token:
            losses = torch.empty(rows, dtype=torch.float32, device=device)
            args.losses = losses.data_ptr()
        else:
            losses = torch.empty((), dtype=torch.float32, device=device)
            args.loss = losses.data_ptr()
        return losses


def set_upstream(args, upstream):
    """The gradient that arrived of the loss, one element or one for each row, into `args`; what must live until the call has been made."""
    if upstream.dim() != 1:
        upstream = upstream.reshape(-1)
    args.upstream = upstream.data_ptr()
    args.upstream_stride = upstream.stride(0) if upstream.numel() > 1 else 0
    return upstream


def check_labels(labels, leading, device, where):
    """Labels of the leading shape of `where`, as one dimension of int32 or int64 on its device."""
    if isinstance(labels, torch.Tensor) and labels.dtype in tensors.INTEGERS and labels.shape == leading and labels.device == device:
        return labels if labels.dim() == 1 else labels.reshape(-1)
    expect_tensor(isinstance(labels, torch.Tensor), "labels", "a tensor of token numbers", labels)
    expect_tensor(not labels.dtype.is_floating_point and not labels.dtype.is_complex and labels.dtype != torch.bool, "labels", "integers", labels)
    expect_tensor(labels.shape == leading, "labels", "shape {}, as {} without its last dimension", labels, list(leading), where)
    tensors.check_same_device("labels", labels, device, where)
    return labels.to(torch.int64).reshape(-1)


def shifted(labels, ignore_index):
    """Labels moved one position to the left in their last dimension: position t is asked for token t + 1, and the last one for nothing. The logits stay
    whole, so that nothing of their size is copied."""
    expect_tensor(isinstance(labels, torch.Tensor) and labels.dim() > 0, "labels", "at least one dimension to shift in", labels)
    return torch.nn.functional.pad(labels[..., 1:], (0, 1), value=ignore_index)
