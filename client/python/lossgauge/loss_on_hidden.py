"""Cross-entropy of a linear head that never holds the logits: of hidden states, head and labels."""

import ctypes

import torch
from torch.autograd.function import once_differentiable

from . import library, tensors
from .loss_on_logits import scale
from .options import LossOptions, check_labels, set_upstream, shifted
from .recomputation import in_recomputation
from .tensors import expect


def linear_cross_entropy(
    hidden,
    weight,
    labels,
    bias=None,
    *,
    gauge=None,
    ignore_index=-100,
    label_smoothing=0.0,
    reduction="mean",
    z_loss=0.0,
    logit_scale=1.0,
    logit_softcap=None,
    denominator=None,
    vocab_size=None,
    shift=False,
    grad_scale=None,
    block=None,
    position_base=0,
    chunk_rows=0,
    memory_budget=0,
    most_unmasked=None,
):
    """Cross-entropy of `hidden` [..., H] times `weight` [V, H] transposed plus `bias` [V] against `labels` [...], in nats, a chunk of rows at a time.

    Equal to cross_entropy(torch.nn.functional.linear(hidden, weight, bias), labels, ...) to the rounding of sums. Options as there; vocab_size: rows of the
    head that are real. Under autocast hidden, weight and bias are taken in its dtype, as torch's linear takes them.

    chunk_rows: rows whose logits are held at once; 0: as memory_budget (bytes; 0: a default that keeps the products at full speed) allows.
    most_unmasked: upper bound of unmasked labels, if known; on a CUDA device chunks beyond it need not run.
    """
    hidden, weight, bias = _autocast(hidden, weight, bias)
    tensors.check_floats("hidden", hidden)
    tensors.check_floats("weight", weight, dims=2)
    expect(hidden.dim() >= 1, "hidden", "at least one dimension", tensors.kind(hidden))
    expect(weight.shape[1] == hidden.shape[-1], "weight", "[V, {}], as wide as hidden".format(hidden.shape[-1]), tensors.kind(weight))
    expect(weight.dtype == hidden.dtype, "weight", str(hidden.dtype), tensors.kind(weight))
    tensors.check_same_device("weight", weight, hidden.device, "hidden")
    if bias is not None:
        tensors.check_floats("bias", bias, dims=1)
        expect(bias.shape[0] == weight.shape[0], "bias", "[{}], one for each row of weight".format(weight.shape[0]), tensors.kind(bias))
        expect(bias.dtype == hidden.dtype, "bias", str(hidden.dtype), tensors.kind(bias))
        tensors.check_same_device("bias", bias, hidden.device, "hidden")
    if shift:
        labels = shifted(labels, ignore_index)
    flat_labels = check_labels(labels, hidden.shape[:-1], hidden.device, "hidden")
    options = LossOptions(
        ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction, z_loss=z_loss, logit_scale=logit_scale,
        logit_softcap=logit_softcap, denominator=denominator, grad_scale=grad_scale, block=block, position_base=position_base, vocab_size=vocab_size,
        columns=weight.shape[0])
    call = _Call(options, None if in_recomputation() else gauge, chunk_rows, memory_budget, -1 if most_unmasked is None else most_unmasked)
    enabled = torch.is_grad_enabled()
    call.wants = tuple(enabled and t is not None and t.requires_grad for t in (hidden, weight, bias))
    losses = _LinearCrossEntropy.apply(hidden, weight, bias, flat_labels, call)
    return losses.view(labels.shape) if reduction == "none" else losses


def _autocast(*given):
    device = next((t.device.type for t in given if isinstance(t, torch.Tensor)), "cpu")
    dtype = _autocast_dtype(device)
    if dtype is None:
        return given
    return tuple(t.to(dtype) if isinstance(t, torch.Tensor) and t.is_floating_point() else t for t in given)


def _autocast_dtype(device):
    """The dtype of autocast on a kind of device, None where it is off."""
    if hasattr(torch, "get_autocast_dtype"):  # from torch 2.4 on one question for all kinds
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cuda":
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


class _Call:
    """What a call needs besides its tensors."""

    def __init__(self, options, gauge, chunk_rows, memory_budget, most_unmasked):
        self.options, self.gauge = options, gauge
        self.chunk_rows, self.memory_budget, self.most_unmasked = chunk_rows, memory_budget, most_unmasked
        self.wants = (False, False, False)

    def args(self, hidden, weight, bias, labels, gauge=True):
        args = library.new("linear_cross_entropy_args")
        alive = self.options.fill(args.loss, labels, hidden.device, self.gauge if gauge else None)
        args.hidden, args.dtype = tensors.pointer(hidden), tensors.FLOATS[hidden.dtype]
        args.rows, args.width = hidden.shape
        args.hidden_stride = tensors.row_stride(hidden)
        args.weight, args.columns = tensors.pointer(weight), weight.shape[0]
        args.weight_stride = tensors.row_stride(weight)
        args.bias = tensors.pointer(bias)
        args.chunk_rows, args.memory_budget, args.most_unmasked_rows = self.chunk_rows, self.memory_budget, self.most_unmasked
        return args, alive

    def gradients(self, args, hidden, weight, bias):
        """New gradients of what is wanted, in their tensors' dtypes, and entered into `args`."""
        made = [torch.empty(t.shape, dtype=t.dtype, device=t.device) if wanted else None for wanted, t in zip(self.wants, (hidden, weight, bias))]
        args.grad_hidden, args.grad_weight, args.grad_bias = (tensors.pointer(t) for t in made)
        args.head_grad_dtype = tensors.FLOATS[weight.dtype]
        return made


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, labels, call):
        rows, head = tensors.as_rows(hidden), tensors.as_rows(weight)
        flat_bias = None if bias is None else bias.contiguous()
        args, alive = call.args(rows, head, flat_bias, labels)
        losses = call.options.losses(args.loss, rows.shape[0], rows.device)
        # As in cross_entropy: not before their factors are known where there is one per token, and not in fp16 before the loss scale.
        ctx.gradients = None
        if any(call.wants) and not call.options.per_token and rows.dtype != torch.float16:
            ctx.gradients = call.gradients(args, rows, head, flat_bias)
        library.call("linear_cross_entropy", ctypes.byref(args))
        del alive
        ctx.call, ctx.shape = call, hidden.shape
        if any(call.wants):
            ctx.save_for_backward(hidden, weight, bias, labels)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        upstream = upstream.to(torch.float32)
        gradients, ctx.gradients = ctx.gradients, None
        if gradients is not None:
            # Handed out once: autograd may add to them, so that a second pass starts from the hidden states.
            for gradient in gradients:
                if gradient is not None:
                    scale(gradient if gradient.dim() == 2 else gradient.view(1, -1), upstream)
        else:
            call = ctx.call
            hidden, weight, bias, labels = ctx.saved_tensors
            rows, head = tensors.as_rows(hidden), tensors.as_rows(weight)
            flat_bias = None if bias is None else bias.contiguous()
            args, alive = call.args(rows, head, flat_bias, labels, gauge=False)
            alive.append(set_upstream(args.loss, upstream))
            gradients = call.gradients(args, rows, head, flat_bias)
            library.call("linear_cross_entropy_backward", ctypes.byref(args))
            del alive
        of_hidden = None if gradients[0] is None else gradients[0].view(ctx.shape)
        return of_hidden, gradients[1], gradients[2], None, None
