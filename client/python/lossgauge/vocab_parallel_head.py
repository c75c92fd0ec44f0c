"""Cross-entropy of a linear head whose rows are spread over the ranks of a process group, without ever holding the logits."""

import ctypes

import torch

from . import abi, library, tensors
from .compiling import outside_graphs
from .loss_on_hidden import LinearCall, autocast, hand_out, prepare
from .vocab_parallel import Group, Shard

_UNAVAILABLE = 14


def vocab_parallel_linear_cross_entropy(
    hidden,
    weight,
    labels,
    bias=None,
    *,
    vocab_size=None,
    shard_offset=None,
    shard_columns=None,
    process_group=None,
    gauge=None,
    ignore_index=-100,
    label_smoothing=0.0,
    reduction="mean",
    z_loss=0.0,
    logit_scale=1.0,
    logit_softcap=None,
    denominator=None,
    shift=False,
    grad_scale=None,
    block=None,
    position_base=None,
    chunk_rows=0,
    most_unmasked=None,
):
    """Cross-entropy of `hidden` [..., H], the same on all ranks of the group, times a head of which this rank holds the rows `weight` [rows, H] and `bias` [rows];
    options as in linear_cross_entropy, vocab_size to process_group as in vocab_parallel_cross_entropy, rows of the head being columns there.

    A chunk of tokens at a time, with an all-gather for each. The gradient of `hidden` is summed over the group, in its dtype; those of weight and bias are whole.
    chunk_rows: the same on all ranks; 0: a default that is. Per-token losses and fp16 exchange once more in the backward pass, so that all ranks must run it, in
    the same order.
    """
    options = dict(
        ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction, z_loss=z_loss, logit_scale=logit_scale,
        logit_softcap=logit_softcap, denominator=denominator, vocab_size=None, grad_scale=grad_scale, block=block, position_base=position_base)
    limits = (chunk_rows, 0, -1 if most_unmasked is None else most_unmasked)
    hidden, weight, bias = autocast(hidden, weight, bias)
    return outside_graphs(_loss, hidden, weight, labels, bias, gauge, shift, process_group, (vocab_size, shard_offset, shard_columns), limits, options)


def _loss(hidden, weight, labels, bias, gauge, shift, process_group, shard, limits, options):
    enabled = torch.is_grad_enabled()
    wants = tuple(enabled and getattr(t, "requires_grad", False) for t in (hidden, weight, bias))
    tensors.check_floats("weight", weight, dims=2)
    group = Group(process_group)
    shard = Shard(group, weight.shape[0], gauge, *shard)
    call, flat_labels, shape = prepare(hidden, weight, labels, bias, gauge, shift, limits, options, wants, shard.vocab_size)
    call = _ShardedLinearCall(call, group, shard)
    losses = _VocabParallelLinear.apply(hidden, weight, bias, flat_labels, call)
    return losses.view(shape) if call.options.per_token else losses


class _ShardedLinearCall(LinearCall):
    def __init__(self, call, group, shard):
        super().__init__(call.options, call.gauge, call.limits, call.wants)
        self.group, self.shard = group, shard

    def sharded(self, args):
        sharded = library.new("vocab_parallel_linear_args")
        sharded.group_size, sharded.group_index = self.group.size, self.group.index
        sharded.vocab_size, sharded.shard_offset, sharded.shard_columns = self.shard.vocab_size, self.shard.offset, self.shard.columns
        sharded.step = self.group.exchange
        sharded.linear = ctypes.pointer(args)
        return sharded

    def plan(self, args, plan):
        library.call("vocab_parallel_linear_plan", ctypes.byref(self.sharded(args)), ctypes.byref(plan))

    def run(self, name, args, memory):
        """The call with its exchanges, and what went wrong in one of them instead of the library's word for it."""
        if name == "linear_cross_entropy_backward":
            self.group.next_exchange()
        self.group.check_sizes(torch.device("cpu") if memory is None else memory.device, args.rows, args.chunk_rows)
        exchange = _Exchange(self.group, memory)
        sharded = self.sharded(args)
        sharded.exchange = abi.EXCHANGE(exchange)
        try:
            library.call("vocab_parallel_linear_cross_entropy", ctypes.byref(sharded))
        except library.errors.Error:
            if exchange.failure is not None:
                raise exchange.failure
            raise


class _Exchange:
    """The library's all-gather by torch.distributed. `memory`: the workspace on a device, which holds both of its pointers; None on a CPU."""

    def __init__(self, group, memory):
        self.group, self.memory, self.failure = group, memory, None

    def __call__(self, _, contribution, gathered, size, stream):
        try:
            self.group.gather_into(self.view(gathered, size * self.group.size), self.view(contribution, size))
            return 0
        except BaseException as failure:  # nothing may pass through the library's frames
            self.failure = failure
            return _UNAVAILABLE

    def view(self, address, size):
        if self.memory is None:
            return torch.frombuffer((ctypes.c_uint8 * size).from_address(address), dtype=torch.uint8)
        begin = address - self.memory.data_ptr()
        return self.memory[begin:begin + size]


class _VocabParallelLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden, weight, bias, labels, call):
        rows, biases = _rows(weight, bias)
        ctx.gradients = call.new_gradients(hidden, rows, biases) if call.at_once(hidden.dtype) else None
        losses = call.loss(hidden, rows, biases, labels, ctx.gradients or (None, None, None))
        ctx.call = call
        if any(call.wants):
            ctx.save_for_backward(hidden, weight, bias, labels)
        return losses

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, upstream):
        hidden, weight, bias, labels = ctx.saved_tensors
        gradients = hand_out(ctx, upstream, lambda: (hidden, *_rows(weight, bias), labels))
        if gradients[0] is not None:
            torch.distributed.all_reduce(gradients[0], group=ctx.call.group.handle)
        of_weight, of_bias = (None if gradient is None else gradient[:weight.shape[0]] for gradient in gradients[1:])
        return gradients[0], of_weight, of_bias, None, None


def _rows(weight, bias):
    """A rank without rows has one of padding."""
    if weight.shape[0]:
        return weight, bias
    return weight.new_zeros(1, weight.shape[1]), None if bias is None else bias.new_zeros(1)
