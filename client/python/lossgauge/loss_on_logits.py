"""Cross-entropy on existing logits: loss and gradient in one sweep over them."""

import ctypes

import torch
from torch.autograd.function import once_differentiable

from . import library, tensors
from .arguments import expect, refuse
from .compiling import HAS_OPERATORS, is_compiling, outside_graphs
from .errors import FailedPrecondition
from .gauge import Gauge
from .options import LossOptions, check_labels, set_upstream, shifted
from .recomputation import in_recomputation
from .tensors import expect_tensor


def cross_entropy(
    logits,
    labels,
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
    inplace=False,
    grad_scale=None,
    block=None,
    position_base=None,
):
    """Cross-entropy of `logits` [..., V] (fp32, bf16 or fp16) against `labels` [...] (token numbers), in nats.

    As torch.nn.functional.cross_entropy, but that classes are the last dimension, the loss is fp32 whatever the logits are, and a batch without an
    unmasked label has loss 0. Returns a scalar, or losses [...] with reduction="none".

    z_loss: weight of log(Z)^2 in the loss. logit_scale, logit_softcap: z = softcap * tanh(scale * logits / softcap).
    denominator: tokens to divide by (a number, or a one-element tensor, which is read on the device); None: what gauge.accumulate counted for the step, else
        this call's unmasked labels.
    vocab_size: real columns; the ones behind are padding and get gradient 0.
    shift: logits at t are scored against the label at t + 1 of the last label dimension, without a copy of the logits.
    inplace: the gradient takes the logits' memory. `logits` is empty afterwards, so that what still reads them fails instead of reading a gradient, and
        one backward pass is all there is. Under torch.compile the graph breaks there.
    grad_scale: one-element tensor folded into the gradient before it is rounded (the scale of an AMP scaler that scales the loss elsewhere).
    block: counter block of the gauge; None: "train", or "eval" during evaluation and warm-up.
    position_base: position in the step of the first label, for worst_row; None: behind the gauge's last call.

    Raises InvalidArgument (a ValueError) that names the argument, what was expected and what was got.
    """
    options = dict(
        ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction, z_loss=z_loss, logit_scale=logit_scale,
        logit_softcap=logit_softcap, denominator=denominator, vocab_size=vocab_size, grad_scale=grad_scale, block=block, position_base=position_base)
    if HAS_OPERATORS and not inplace:
        if is_compiling():
            from . import graph_ops

            return graph_ops.cross_entropy(logits, labels, gauge, shift, options)
        return _cross_entropy(logits, labels, gauge, shift, False, options)
    return outside_graphs(_cross_entropy, logits, labels, gauge, shift, inplace, options)


def _cross_entropy(logits, labels, gauge, shift, inplace, options):
    wants_gradient = torch.is_grad_enabled() and getattr(logits, "requires_grad", False)
    call, flat_labels, shape = prepare(logits, labels, gauge, shift, options, wants_gradient, inplace)
    return run(call, logits, flat_labels, shape)


def run(call, logits, flat_labels, shape):
    """The loss of a prepared Call, or with reduction="none" the losses in the shape of its labels."""
    losses = _CrossEntropy.apply(logits, flat_labels, call)
    if call.inplace:
        # Whoever saved the logits for a backward pass finds another version; who holds them finds nothing.
        _new_version(logits)
        logits.data = logits.new_empty(0)
    return losses.view(shape) if call.options.per_token else losses


def prepare(logits, labels, gauge, shift, options, wants_gradient, inplace=False):
    """Checks the arguments of a loss call. Its Call, its labels in one dimension, and the shape of its labels."""
    labels, flat_labels = check_tensors(logits, labels, shift, options["ignore_index"])
    options = LossOptions(columns=logits.shape[-1], **options)
    if inplace and wants_gradient:
        check_inplace(logits)
    gauge = counting_gauge(gauge, options, flat_labels, logits.shape[-1], wants_gradient)
    return Call(options, gauge, wants_gradient, inplace and wants_gradient), flat_labels, labels.shape


def counting_gauge(gauge, options, labels, columns, wants_gradient):
    """Gives a loss call's LossOptions what the gauge's step knows. The gauge that counts the call: none where it runs again for a backward pass."""
    if gauge is None:
        return None
    if not isinstance(gauge, Gauge):
        refuse("gauge", "a lossgauge.Gauge", type(gauge).__name__)
    again = in_recomputation()
    gauge.complete(options, labels, columns, wants_gradient, again)
    return None if again else gauge


def check_tensors(logits, labels, shift, ignore_index):
    """The labels, shifted if they are to be, and the same in one dimension."""
    tensors.check_floats("logits", logits)
    if logits.dim() < 1:
        expect_tensor(False, "logits", "at least one dimension", logits)
    if shift:
        labels = shifted(labels, ignore_index)
    return labels, check_labels(labels, logits.shape[:-1], logits.device, "logits")


def observe_logits(logits, labels, *, gauge, ignore_index=-100, logit_scale=1.0, logit_softcap=None, vocab_size=None, shift=False, block=None,
                   position_base=None):
    """Reads `logits` once for their signals, beside a loss that something else computes. No loss, no gradient; arguments as in cross_entropy."""
    options = dict(ignore_index=ignore_index, logit_scale=logit_scale, logit_softcap=logit_softcap, vocab_size=vocab_size, block=block,
                   position_base=position_base, reduction="sum")
    outside_graphs(_observe_logits, logits, labels, gauge, shift, options)


def _observe_logits(logits, labels, gauge, shift, options):
    call, flat_labels, _ = prepare(logits, labels, gauge, shift, options, False)
    if call.gauge is None:
        return
    args, alive = call.args(tensors.as_rows(logits.detach()), flat_labels)
    library.call("observe_logits", ctypes.byref(args))
    del alive


class Call:
    """What a call needs besides its tensors."""

    def __init__(self, options, gauge, wants_gradient, inplace=False):
        self.options = options
        self.gauge = gauge
        self.wants_gradient = wants_gradient
        self.inplace = inplace

    def at_once(self, dtype):
        """Whether the gradient comes with the loss: where one factor for all rows follows, which most often is 1. A gradient per token needs its own
        factors; a gradient in fp16 needs the loss scale before it is rounded, or it has vanished."""
        return self.wants_gradient and not self.options.per_token and dtype != torch.float16

    def rows(self, logits, labels):
        """The logits in two dimensions, where that can be without a copy."""
        return tensors.as_rows(logits)

    def like_logits(self, gradient, shape):
        """A gradient in rows, in the shape of the logits."""
        return gradient if gradient.shape == shape else gradient.view(shape)

    def args(self, rows, labels, gradient=None, gauge=True):
        args = library.new("cross_entropy_args")
        return args, self.fill(args, rows, labels, gradient, gauge)

    def fill(self, args, rows, labels, gradient, gauge):
        """Fills `args` (lg_cross_entropy_args). Returns the tensors that must live until the call has been made."""
        alive = self.options.fill(args, labels, rows.device, self.gauge if gauge else None)
        args.logits = rows.data_ptr()
        args.logits_dtype = tensors.FLOATS[rows.dtype]
        args.rows, args.columns = rows.shape
        args.row_stride = tensors.row_stride(rows)
        if gradient is not None:
            args.grad_logits = gradient.data_ptr()
            args.grad_row_stride = tensors.row_stride(gradient)
        alive += (rows, labels)
        return alive

    def loss(self, rows, labels, gradient):
        """The loss, or the losses of the rows; with it the gradient at upstream 1 into `gradient`, unless that is None."""
        args, alive = self.args(rows, labels, gradient)
        losses = self.options.losses(args, rows.shape[0], rows.device)
        library.call("cross_entropy", ctypes.byref(args))
        del alive
        return losses

    def gradient(self, rows, labels, upstream, gradient):
        """The gradient at `upstream` into `gradient`, from the logits."""
        args, alive = self.args(rows, labels, gradient, gauge=False)
        alive.append(set_upstream(args, upstream))
        library.call("cross_entropy_backward", ctypes.byref(args))
        del alive


def check_inplace(logits):
    if tensors.as_rows(logits.detach()).data_ptr() != logits.data_ptr():
        refuse("logits", "rows with unit column stride for inplace=True", "strides {}".format(list(logits.stride())))
    expect(not (logits.requires_grad and logits.is_leaf), "logits", "the result of a computation for inplace=True", "a leaf that wants its own gradient")


def _write_nothing(tensor):
    tensor.detach().view(-1)[:0].zero_()


# Tells autograd that the tensor was written to. Before torch 2.1 only operators could.
_new_version = getattr(torch.autograd.graph, "increment_version", _write_nothing)


class _CrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, labels, call):
        rows = call.rows(logits, labels)
        if call.inplace:
            rows = rows.detach()  # a tensor of its own: the caller's loses its memory
        gradient = None
        if call.at_once(rows.dtype):
            gradient = rows if call.inplace else torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
        losses = call.loss(rows, labels, gradient)
        ctx.call, ctx.gradient, ctx.shape = call, gradient, logits.shape
        ctx.rows = rows if call.inplace and gradient is None else None
        ctx.used = False
        if call.wants_gradient:
            ctx.save_for_backward(*((labels,) if call.inplace else (labels, logits)))
        return losses

    @staticmethod
    def backward(ctx, upstream):
        # Gradients of gradients there are none, which is said only where somebody builds a graph of the backward pass: saying it takes time.
        return _second_order_refused(ctx, upstream) if torch.is_grad_enabled() else _CrossEntropy.first_order(ctx, upstream)

    @staticmethod
    def first_order(ctx, upstream):
        upstream = upstream.to(torch.float32)
        used, ctx.used = ctx.used, True
        gradient, ctx.gradient = ctx.gradient, None
        call = ctx.call
        if gradient is not None:
            # Handed out once: autograd may add to it, so that a second pass starts from the logits.
            scale(gradient, upstream)
            return call.like_logits(gradient, ctx.shape), None, None
        if call.inplace:
            if used:
                raise FailedPrecondition("backward: the gradient took the logits' memory (inplace=True) and was handed out; a second pass has nothing to start from")
            (labels,) = ctx.saved_tensors
            rows, ctx.rows = ctx.rows, None
            gradient = rows
        else:
            labels, logits = ctx.saved_tensors
            rows = call.rows(logits, labels)
            gradient = torch.empty(rows.shape, dtype=rows.dtype, device=rows.device)
        call.gradient(rows, labels, upstream, gradient)
        return call.like_logits(gradient, ctx.shape), None, None


_second_order_refused = once_differentiable(_CrossEntropy.first_order)


def scale(gradient, upstream):
    """A contiguous gradient, or one in rows, *= upstream (one element), on its stream; 1 leaves every bit."""
    rows = gradient if gradient.dim() == 2 else gradient.view(1, -1)
    args = library.new("scale_gradient_args")
    args.grad = rows.data_ptr()
    args.dtype = tensors.FLOATS[rows.dtype]
    args.rows, args.columns = rows.shape
    args.row_stride = tensors.row_stride(rows)
    alive = set_upstream(args, upstream)
    tensors.run_on(args, rows.device)
    library.call("scale_gradient", ctypes.byref(args))
    del alive
