"""Cross-entropy of a linear head that never holds the logits: of hidden states, head and labels."""

import ctypes

import torch
from torch.autograd.function import once_differentiable

from . import abi, library, tensors
from .arguments import integer
from .compiling import HAS_OPERATORS, is_compiling, outside_graphs
from .loss_on_logits import counting_gauge, scale
from .options import LossOptions, check_labels, set_upstream, shifted
from .tensors import expect_tensor


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
    position_base=None,
    chunk_rows=0,
    memory_budget=0,
    most_unmasked=None,
):
    """Cross-entropy of `hidden` [..., H] times `weight` [V, H] transposed plus `bias` [V] against `labels` [...], in nats, a chunk of rows at a time.

    Equal to cross_entropy(torch.nn.functional.linear(hidden, weight, bias), labels, ...) to the rounding of sums. Options as there; vocab_size: rows of the
    head that are real. Under autocast hidden, weight and bias are taken in its dtype, as torch's linear takes them.

    chunk_rows: rows whose logits are held at once; 0: as memory_budget (bytes; 0: a default that keeps the products at full speed) allows.
    most_unmasked: upper bound of unmasked labels, if known; on a CUDA device chunks beyond it need not run, and with more of them the loss is NaN.
    """
    options = dict(
        ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction, z_loss=z_loss, logit_scale=logit_scale,
        logit_softcap=logit_softcap, denominator=denominator, vocab_size=vocab_size, grad_scale=grad_scale, block=block, position_base=position_base)
    limits = (chunk_rows, memory_budget, -1 if most_unmasked is None else most_unmasked)
    hidden, weight, bias = autocast(hidden, weight, bias)
    if HAS_OPERATORS:
        if is_compiling():
            from . import graph_ops

            return graph_ops.linear_cross_entropy(hidden, weight, labels, bias, gauge, shift, limits, options)
        return _linear_cross_entropy(hidden, weight, labels, bias, gauge, shift, limits, options)
    return outside_graphs(_linear_cross_entropy, hidden, weight, labels, bias, gauge, shift, limits, options)


def _linear_cross_entropy(hidden, weight, labels, bias, gauge, shift, limits, options):
    enabled = torch.is_grad_enabled()
    wants = tuple(enabled and getattr(t, "requires_grad", False) for t in (hidden, weight, bias))
    call, flat_labels, shape = prepare(hidden, weight, labels, bias, gauge, shift, limits, options, wants)
    losses = _LinearCrossEntropy.apply(hidden, weight, bias, flat_labels, call)
    return losses.view(shape) if call.options.per_token else losses


def prepare(hidden, weight, labels, bias, gauge, shift, limits, options, wants, vocab_size=None):
    """Checks the arguments of a loss call. Its LinearCall, its labels in one dimension, and the shape of its labels."""
    tensors.check_floats("hidden", hidden)
    tensors.check_floats("weight", weight, dims=2)
    expect_tensor(hidden.dim() >= 1, "hidden", "at least one dimension", hidden)
    expect_tensor(weight.shape[1] == hidden.shape[-1], "weight", "[V, {}], as wide as hidden", weight, hidden.shape[-1])
    expect_tensor(weight.dtype == hidden.dtype, "weight", "{}", weight, hidden.dtype)
    tensors.check_same_device("weight", weight, hidden.device, "hidden")
    if bias is not None:
        tensors.check_floats("bias", bias, dims=1)
        expect_tensor(bias.shape[0] == weight.shape[0], "bias", "[{}], one for each row of weight", bias, weight.shape[0])
        expect_tensor(bias.dtype == hidden.dtype, "bias", "{}", bias, hidden.dtype)
        tensors.check_same_device("bias", bias, hidden.device, "hidden")
    if shift:
        labels = shifted(labels, options["ignore_index"])
    flat_labels = check_labels(labels, hidden.shape[:-1], hidden.device, "hidden")
    options = LossOptions(columns=weight.shape[0], **options)
    gauge = counting_gauge(gauge, options, flat_labels, vocab_size or weight.shape[0], any(wants))
    return LinearCall(options, gauge, limits, wants), flat_labels, labels.shape


_HAS_AUTOCAST_DTYPE = hasattr(torch, "get_autocast_dtype")  # from torch 2.4 on one question for all kinds of devices


def autocast(hidden, weight, bias):
    """Hidden states, head and bias as torch's linear would take them."""
    if not isinstance(hidden, torch.Tensor):
        return hidden, weight, bias
    dtype = _autocast_dtype(hidden.device.type)
    return _cast(hidden, dtype), _cast(weight, dtype), _cast(bias, dtype)


def _cast(tensor, dtype):
    return tensor.to(dtype) if dtype is not None and isinstance(tensor, torch.Tensor) and tensor.is_floating_point() else tensor


def _autocast_dtype(device):
    """The dtype of autocast on a kind of device, None where it is off."""
    if _HAS_AUTOCAST_DTYPE:
        return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None
    if device == "cuda":
        return torch.get_autocast_gpu_dtype() if torch.is_autocast_enabled() else None
    return torch.get_autocast_cpu_dtype() if torch.is_autocast_cpu_enabled() else None


class LinearCall:
    """What a call needs besides its tensors. limits: chunk_rows, memory_budget, most_unmasked_rows. wants: gradients of hidden, weight and bias."""

    def __init__(self, options, gauge, limits, wants):
        self.options, self.gauge, self.limits, self.wants = options, gauge, limits, wants

    def at_once(self, dtype):
        """As in cross_entropy: not before their factors are known where there is one per token, and not in fp16 before the loss scale."""
        return any(self.wants) and not self.options.per_token and dtype != torch.float16

    def args(self, hidden, weight, bias, labels, gradients, gauge=True):
        rows, head = tensors.as_rows(hidden), tensors.as_rows(weight)
        flat_bias = None if bias is None else bias.contiguous()
        args = library.new("linear_cross_entropy_args")
        alive = self.options.fill(args.loss, labels, rows.device, self.gauge if gauge else None)
        args.hidden, args.dtype = tensors.pointer(rows), tensors.FLOATS[rows.dtype]
        args.rows, args.width = rows.shape
        args.hidden_stride = tensors.row_stride(rows)
        args.weight, args.columns = tensors.pointer(head), head.shape[0]
        args.weight_stride = tensors.row_stride(head)
        args.bias = tensors.pointer(flat_bias)
        args.chunk_rows, args.memory_budget, args.most_unmasked_rows = map(integer, ("chunk_rows", "memory_budget", "most_unmasked"), self.limits)
        args.grad_hidden, args.grad_weight, args.grad_bias = (tensors.pointer(t) for t in gradients)
        args.head_grad_dtype = tensors.FLOATS[head.dtype]
        return args, alive + [rows, head, flat_bias], self.workspace(args, rows.device)

    def workspace(self, args, device):
        """Memory of torch's for a call on a device: counted with the rest, and there in a captured graph."""
        if device.type != "cuda":
            return None
        plan = abi.LinearPlan(struct_size=ctypes.sizeof(abi.LinearPlan))
        self.plan(args, plan)
        memory = torch.empty(plan.workspace_bytes, dtype=torch.uint8, device=device)
        args.workspace, args.workspace_bytes = memory.data_ptr(), plan.workspace_bytes
        return memory

    def plan(self, args, plan):
        library.call("linear_cross_entropy_plan", ctypes.byref(args), ctypes.byref(plan))

    def run(self, name, args, memory):
        library.call(name, ctypes.byref(args))

    def new_gradients(self, hidden, weight, bias):
        """Memory for the gradients that are wanted, in their tensors' dtypes."""
        return [torch.empty(t.shape, dtype=t.dtype, device=t.device) if wanted else None for wanted, t in zip(self.wants, (hidden, weight, bias))]

    def loss(self, hidden, weight, bias, labels, gradients):
        """The loss, or the losses of the rows; with it the gradients at upstream 1 into those of `gradients` that are not None."""
        args, alive, memory = self.args(hidden, weight, bias, labels, gradients)
        losses = self.options.losses(args.loss, args.rows, hidden.device)
        self.run("linear_cross_entropy", args, memory)
        del alive, memory
        return losses

    def gradient(self, hidden, weight, bias, labels, upstream):
        """The gradients at `upstream`, from the hidden states."""
        gradients = self.new_gradients(hidden, weight, bias)
        args, alive, memory = self.args(hidden, weight, bias, labels, gradients, gauge=False)
        alive.append(set_upstream(args.loss, upstream))
        self.run("linear_cross_entropy_backward", args, memory)
        del alive, memory
        return gradients


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, labels, call):
        ctx.gradients = call.new_gradients(hidden, weight, bias) if call.at_once(hidden.dtype) else None
        losses = call.loss(hidden, weight, bias, labels, ctx.gradients or (None, None, None))
        ctx.call = call
        if any(call.wants):
            ctx.save_for_backward(hidden, weight, bias, labels)
        return losses

    @staticmethod
    @once_differentiable
    def backward(ctx, upstream):
        of_hidden, of_weight, of_bias = hand_out(ctx, upstream, lambda: ctx.saved_tensors)
        return of_hidden, of_weight, of_bias, None, None


def hand_out(ctx, upstream, saved):
    """The gradients at `upstream` for a backward pass: those that came with the loss, or, from the second pass on, since autograd may add to what it gets,
    from the hidden states again. saved(): hidden, weight, bias, labels, if they are needed."""
    upstream = upstream.to(torch.float32)
    gradients, ctx.gradients = ctx.gradients, None
    if gradients is None:
        return ctx.call.gradient(*saved(), upstream)
    for gradient in gradients:
        if gradient is not None:
            scale(gradient, upstream)
    return gradients
