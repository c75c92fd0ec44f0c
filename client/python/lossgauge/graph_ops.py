"""The losses as operators of torch.compile (torch 2.4 and newer): no graph break, forward and backward, any shapes.

A graph holds tensors, numbers and strings. So an operator takes the loss's options one by one and a gauge by its name, and asks the gauge when it runs: where
in the step it is, and the step's denominator. Operators that count are kept out of CUDA graphs that the compiler makes (Tag.cudagraph_unsafe): these would
replay what the gauge said once.

With a gauge the gradient comes with the loss, as in eager mode, so that its signals are there, and is scaled into a second tensor when the upstream gradient
is known: a graph may not write over what it saved. Without a gauge nothing is saved but the logits, and the backward pass computes the gradient from them.
The linear loss always computes gradients with the loss: logits cost a product.
"""

import torch

from . import loss_on_hidden, loss_on_logits, tensors
from .gauge import gauge_named

# As they stand in each operator's arguments, behind its tensors.
_OPTIONS = (
    "str gauge, str reduction, int ignore_index, float label_smoothing, float z_loss, float logit_scale, float? logit_softcap, float? denominator_number, "
    "int? vocab_size, int? block, SymInt? position_base")
_SCALARS = "Tensor? denominator, Tensor? grad_scale, "
_HEAD = "Tensor hidden, Tensor weight, Tensor? bias, Tensor labels, "
_LIMITS = "int chunk_rows, int memory_budget, SymInt most_unmasked, "
_CUDAGRAPH_UNSAFE = getattr(torch.Tag, "cudagraph_unsafe", None)


def _define(name, arguments, returns, function, fake, counts=False):
    """An operator that writes into none of its arguments."""
    tags = {"tags": (_CUDAGRAPH_UNSAFE,)} if counts and _CUDAGRAPH_UNSAFE is not None else {}
    definition = torch.library.custom_op("lossgauge::" + name, function, mutates_args=(), schema="({}) -> {}".format(arguments, returns), **tags)
    definition.register_fake(fake)
    return definition


def _operator(name):
    return getattr(torch.ops.lossgauge, name).default


# ---- what torch.compile traces -----------------------------------------------------------------------------------------------------------------------------


def cross_entropy(logits, labels, gauge, shift, options):
    operator = _cross_entropy if gauge is None else _counted_cross_entropy
    wants = torch.is_grad_enabled() and logits.requires_grad
    found = operator(logits, _labels(labels, shift, options), *_scalars(options, logits.device), wants, *_plain(options, gauge))
    return found[0]


def linear_cross_entropy(hidden, weight, labels, bias, gauge, shift, limits, options):
    operator = _linear if gauge is None else _counted_linear
    enabled = torch.is_grad_enabled()
    wants = (enabled and hidden.requires_grad, enabled and weight.requires_grad, enabled and bias is not None and bias.requires_grad)
    found = operator(hidden, weight, bias, _labels(labels, shift, options), *_scalars(options, hidden.device), *wants, *limits, *_plain(options, gauge))
    return found[0]


def _labels(labels, shift, options):
    return torch.nn.functional.pad(labels[..., 1:], (0, 1), value=options["ignore_index"]) if shift else labels


def _scalars(options, device):
    denominator, grad_scale = options["denominator"], options["grad_scale"]
    if grad_scale is not None and not isinstance(grad_scale, torch.Tensor):
        grad_scale = torch.full((), grad_scale, dtype=torch.float32, device=device)
    return denominator if isinstance(denominator, torch.Tensor) else None, grad_scale


def _plain(options, gauge):
    denominator = options["denominator"]
    return (
        "" if gauge is None else gauge.graph_name, options["reduction"], options["ignore_index"], options["label_smoothing"], options["z_loss"],
        options["logit_scale"], options["logit_softcap"], None if isinstance(denominator, torch.Tensor) else denominator, options["vocab_size"],
        options["block"], options["position_base"])


# ---- what an operator is told, as the eager calls take it --------------------------------------------------------------------------------------------------


def _gauge_and_options(denominator, grad_scale, plain):
    """The gauge, and the options in the form of loss_on_logits.cross_entropy."""
    name, reduction, ignore_index, label_smoothing, z_loss, logit_scale, logit_softcap, number, vocab_size, block, position_base = plain
    return gauge_named(name), dict(
        ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction, z_loss=z_loss, logit_scale=logit_scale, logit_softcap=logit_softcap,
        denominator=number if denominator is None else denominator, vocab_size=vocab_size, grad_scale=grad_scale, block=block, position_base=position_base)


def _call(logits, labels, denominator, grad_scale, wants, plain, counted):
    gauge, options = _gauge_and_options(denominator, grad_scale, plain)
    call, flat_labels, shape = loss_on_logits.prepare(logits, labels, gauge if counted else None, False, options, wants)
    return call, flat_labels, shape if call.options.per_token else ()


def _linear_call(hidden, weight, bias, labels, denominator, grad_scale, wants, limits, plain, counted):
    gauge, options = _gauge_and_options(denominator, grad_scale, plain)
    call, flat_labels, shape = loss_on_hidden.prepare(hidden, weight, labels, bias, gauge if counted else None, False, limits, options, wants)
    return call, flat_labels, shape if call.options.per_token else ()


def _none(like):
    return like.new_empty((0,))


# ---- cross-entropy -----------------------------------------------------------------------------------------------------------------------------------------


def _at_once(dtype, wants, plain):
    """Whether the gradient comes with the loss."""
    gauge, reduction = plain[0], plain[1]
    return gauge != "" and wants and reduction != "none" and dtype != torch.float16


def _forward(logits, labels, denominator, grad_scale, wants, *plain):
    call, flat_labels, shape = _call(logits, labels, denominator, grad_scale, wants, plain, True)
    rows = tensors.as_rows(logits)
    gradient = logits.new_empty(logits.shape) if _at_once(logits.dtype, wants, plain) else None
    losses = call.loss(rows, flat_labels, None if gradient is None else gradient.view(rows.shape))
    return losses.view(shape), _none(logits) if gradient is None else gradient


def _forward_fake(logits, labels, denominator, grad_scale, wants, *plain):
    _, _, shape = _call(logits, labels, denominator, grad_scale, wants, plain, False)
    gradient = logits.new_empty(logits.shape) if _at_once(logits.dtype, wants, plain) else _none(logits)
    return logits.new_empty(shape, dtype=torch.float32), gradient


def _gradient(logits, labels, upstream, denominator, grad_scale, *plain):
    call, flat_labels, _ = _call(logits, labels, denominator, grad_scale, True, plain, False)
    _take_step_denominator(call, plain)
    rows = tensors.as_rows(logits)
    gradient = logits.new_empty(logits.shape)
    call.gradient(rows, flat_labels, upstream, gradient.view(rows.shape))
    return gradient


def _gradient_fake(logits, labels, upstream, denominator, grad_scale, *plain):
    return logits.new_empty(logits.shape)


def _scaled(gradient, upstream):
    scaled = gradient.clone()
    loss_on_logits.scale(scaled, upstream)
    return scaled


def _scaled_fake(gradient, upstream):
    return torch.empty_like(gradient)


def _take_step_denominator(call, plain):
    """The forward pass divided by the step's denominator where the call named none."""
    gauge = gauge_named(plain[0])
    if gauge is not None:
        gauge.complete_denominator(call.options)


_define("cross_entropy_backward", "Tensor logits, Tensor labels, Tensor upstream, " + _SCALARS + _OPTIONS, "Tensor", _gradient, _gradient_fake)
_define("scaled_gradient", "Tensor gradient, Tensor upstream", "Tensor", _scaled, _scaled_fake)
_gradient_of_logits, _scaled_gradient = _operator("cross_entropy_backward"), _operator("scaled_gradient")


def _save(ctx, inputs, output):
    logits, labels, denominator, grad_scale, wants, *plain = inputs
    ctx.set_materialize_grads(False)
    ctx.plain = plain
    ctx.at_once = _at_once(logits.dtype, wants, plain)
    ctx.arguments = len(inputs)
    ctx.save_for_backward(*((output[1],) if ctx.at_once else (logits, labels, denominator, grad_scale)))


def _backward(ctx, upstream, _):
    gradient = None
    if upstream is not None:
        upstream = upstream.to(torch.float32)
        if ctx.at_once:
            gradient = _scaled_gradient(*ctx.saved_tensors, upstream)
        else:
            logits, labels, denominator, grad_scale = ctx.saved_tensors
            gradient = _gradient_of_logits(logits, labels, upstream, denominator, grad_scale, *ctx.plain)
    return (gradient,) + (None,) * (ctx.arguments - 1)


def _loss_operator(name, counts):
    defined = _define(name, "Tensor logits, Tensor labels, " + _SCALARS + "bool wants_gradient, " + _OPTIONS, "(Tensor, Tensor)", _forward, _forward_fake,
                      counts)
    defined.register_autograd(_backward, setup_context=_save)
    return _operator(name)


_cross_entropy = _loss_operator("cross_entropy", False)
_counted_cross_entropy = _loss_operator("counted_cross_entropy", True)


# ---- linear cross-entropy ----------------------------------------------------------------------------------------------------------------------------------


def _linear_at_once(dtype, wants, plain):
    return any(wants) and plain[1] != "none" and dtype != torch.float16


def _linear_forward(hidden, weight, bias, labels, denominator, grad_scale, *more):
    wants, limits, plain = more[:3], more[3:6], more[6:]
    call, flat_labels, shape = _linear_call(hidden, weight, bias, labels, denominator, grad_scale, wants, limits, plain, True)
    gradients = call.new_gradients(hidden, weight, bias) if _linear_at_once(hidden.dtype, wants, plain) else [None, None, None]
    losses = call.loss(hidden, weight, bias, flat_labels, gradients)
    return (losses.view(shape), *(_none(hidden) if gradient is None else gradient for gradient in gradients))


def _linear_forward_fake(hidden, weight, bias, labels, denominator, grad_scale, *more):
    wants, limits, plain = more[:3], more[3:6], more[6:]
    _, _, shape = _linear_call(hidden, weight, bias, labels, denominator, grad_scale, wants, limits, plain, False)
    wants = wants if _linear_at_once(hidden.dtype, wants, plain) else (False, False, False)
    return (hidden.new_empty(shape, dtype=torch.float32), *_wanted_fake(wants, hidden, weight, bias))


def _wanted_fake(wants, *leaves):
    return tuple(leaf.new_empty(leaf.shape) if wanted else _none(leaves[0]) for wanted, leaf in zip(wants, leaves))


def _linear_gradient(hidden, weight, bias, labels, upstream, denominator, grad_scale, *more):
    wants, limits, plain = more[:3], more[3:6], more[6:]
    call, flat_labels, _ = _linear_call(hidden, weight, bias, labels, denominator, grad_scale, wants, limits, plain, False)
    _take_step_denominator(call, plain)
    return tuple(_none(hidden) if gradient is None else gradient for gradient in call.gradient(hidden, weight, bias, flat_labels, upstream))


def _linear_gradient_fake(hidden, weight, bias, labels, upstream, denominator, grad_scale, *more):
    return _wanted_fake(more[:3], hidden, weight, bias)


_WANTS = "bool wants_hidden, bool wants_weight, bool wants_bias, "
_define("linear_cross_entropy_backward", _HEAD + "Tensor upstream, " + _SCALARS + _WANTS + _LIMITS + _OPTIONS, "(Tensor, Tensor, Tensor)", _linear_gradient,
        _linear_gradient_fake)
_gradients_of_parts = _operator("linear_cross_entropy_backward")


def _linear_save(ctx, inputs, output):
    hidden, weight, bias, labels, denominator, grad_scale, *more = inputs
    ctx.set_materialize_grads(False)
    ctx.more, ctx.wants = more, more[:3]
    ctx.at_once = _linear_at_once(hidden.dtype, ctx.wants, more[6:])
    ctx.arguments = len(inputs)
    ctx.save_for_backward(*(output[1:] if ctx.at_once else inputs[:6]))


def _linear_backward(ctx, upstream, *_):
    gradients = (None, None, None)
    if upstream is not None:
        upstream = upstream.to(torch.float32)
        if ctx.at_once:
            gradients = [_scaled_gradient(gradient, upstream) if wanted else None for wanted, gradient in zip(ctx.wants, ctx.saved_tensors)]
        else:
            hidden, weight, bias, labels, denominator, grad_scale = ctx.saved_tensors
            found = _gradients_of_parts(hidden, weight, bias, labels, upstream, denominator, grad_scale, *ctx.more)
            gradients = [gradient if wanted else None for wanted, gradient in zip(ctx.wants, found)]
    return (*gradients,) + (None,) * (ctx.arguments - 3)


def _linear_operator(name, counts):
    defined = _define(name, _HEAD + _SCALARS + _WANTS + _LIMITS + _OPTIONS, "(Tensor, Tensor, Tensor, Tensor)", _linear_forward, _linear_forward_fake, counts)
    defined.register_autograd(_linear_backward, setup_context=_linear_save)
    return _operator(name)


_linear = _linear_operator("linear_cross_entropy", False)
_counted_linear = _linear_operator("counted_linear_cross_entropy", True)
