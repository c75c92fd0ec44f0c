"""Cross-entropy on logits whose columns are spread over the ranks of a process group."""

import ctypes
import weakref

import torch

from . import library, tensors
from .arguments import expect, integer
from .compiling import outside_graphs
from .errors import FailedPrecondition
from .loss_on_logits import Call, check_inplace, check_tensors, counting_gauge, run
from .options import LossOptions, set_upstream


def vocab_parallel_cross_entropy(
    logits,
    labels,
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
    inplace=False,
    grad_scale=None,
    block=None,
    position_base=None,
):
    """Cross-entropy of logits of which this rank holds the columns `logits` [..., columns]; options as in cross_entropy. The loss has the same bits on all
    ranks of the group, the gradient is of the rank's own columns. All ranks call it in the same order, with the same labels (numbers in the whole vocabulary)
    and options (`inplace` aside). One all-gather of 128 + 64 * rows bytes a rank by the group's own backend, on the logits' device; on CPUs behind one of a number.

    vocab_size: real columns V over all ranks; None: the gauge's.
    shard_offset: this rank's first column; None: rank * columns, as where all ranks hold equally many. Ranks need not be in the order of their columns.
    shard_columns: how many of the rank's columns are real, the ones behind being padding; None: those that lie before vocab_size.
    process_group: None: the default one.

    Raises InvalidArgument for an argument that cannot be right. Ranks that contradict each other (dtype, options, columns that do not cover the vocabulary once)
    make FailedPrecondition on every rank on CPUs; on a device, where nobody reads what the others sent, the loss is NaN on every rank and the record counts
    exchange_bad_rows of the sender. So it is with a contribution that arrives wrong. Unequal numbers of tokens are refused on CPUs, and on a device in the group's
    first call, for which the host waits; in a later one they are unequal sizes in a collective, which TORCH_DISTRIBUTED_DEBUG=DETAIL checks. Otherwise the host
    waits for nothing with NCCL; gloo takes a device's tensors through the host.
    """
    options = dict(
        ignore_index=ignore_index, label_smoothing=label_smoothing, reduction=reduction, z_loss=z_loss, logit_scale=logit_scale,
        logit_softcap=logit_softcap, denominator=denominator, vocab_size=None, grad_scale=grad_scale, block=block, position_base=position_base)
    return outside_graphs(_vocab_parallel_cross_entropy, logits, labels, gauge, shift, inplace, process_group, (vocab_size, shard_offset, shard_columns), options)


def _vocab_parallel_cross_entropy(logits, labels, gauge, shift, inplace, process_group, shard, options):
    labels, flat_labels = check_tensors(logits, labels, shift, options["ignore_index"])
    group = Group(process_group)
    shard = Shard(group, logits.shape[-1], gauge, *shard)
    wants_gradient = torch.is_grad_enabled() and logits.requires_grad
    inplace = inplace and wants_gradient and logits.shape[-1] > 0
    if inplace:
        check_inplace(logits)
    options = LossOptions(columns=logits.shape[-1], **options)
    gauge = counting_gauge(gauge, options, flat_labels, shard.vocab_size, wants_gradient)
    return run(_ShardCall(options, gauge, wants_gradient, inplace, group, shard), logits, flat_labels, labels.shape)


class Group:
    """A process group of torch.distributed, and which of its exchanges this is: all of its ranks count the same, since all make the same calls."""

    _exchanges = weakref.WeakKeyDictionary()
    _agreed = weakref.WeakSet()  # groups whose ranks have once had the same sizes

    def __init__(self, process_group):
        distributed = torch.distributed
        if not (distributed.is_available() and distributed.is_initialized()):
            raise FailedPrecondition("process_group: expected torch.distributed to be initialised, got none")
        self.handle = process_group if process_group is not None else distributed.distributed_c10d._get_default_group()
        self.size = distributed.get_world_size(self.handle)
        self.index = distributed.get_rank(self.handle)
        expect(self.index >= 0, "process_group", "a group that this rank is in", "another")
        self.next_exchange()

    def next_exchange(self):
        self.exchange = self._exchanges[self.handle] = self._exchanges.get(self.handle, -1) + 1

    def gather(self, part):
        """[ranks, ...] of what each rank has, in rank order."""
        gathered = part.new_empty((self.size,) + part.shape)
        self.gather_into(gathered.view(-1), part.view(-1))
        return gathered

    def gather_into(self, gathered, part):
        """As gather, into one dimension of it. `part` may be where it goes to."""
        if part.is_cuda and torch.distributed.get_backend(self.handle) != "gloo":  # which has it on CPUs only
            torch.distributed.all_gather_into_tensor(gathered, part, group=self.handle)
        else:
            torch.distributed.all_gather(list(gathered.view(self.size, -1).unbind(0)), part.clone(), group=self.handle)

    def check_sizes(self, device, rows, chunk_rows=0):
        """Contributions of unequal size would end the process inside of gloo, and hang or be mixed up in NCCL: so this comes first, on its own. On a device, where
        the host waits for it, in the group's first calls only, until the ranks agree."""
        if device.type != "cpu" and (self.handle in self._agreed or torch.cuda.is_current_stream_capturing()):
            return
        sizes = self.gather(torch.tensor([rows, chunk_rows], device=device)).tolist()
        for number, expected in enumerate(("labels: expected as many tokens", "chunk_rows: expected the same number")):
            of_ranks = [of_rank[number] for of_rank in sizes]
            if len(set(of_ranks)) != 1:
                raise FailedPrecondition("{} on all ranks of the group, got {} (by rank)".format(expected, of_ranks))
        self._agreed.add(self.handle)


class Shard:
    """Which columns of the vocabulary this rank holds."""

    def __init__(self, group, columns, gauge, vocab_size, offset, real):
        if vocab_size is None and gauge is not None:
            vocab_size = gauge.vocab_size or None
        expect(isinstance(vocab_size, int) and vocab_size > 0, "vocab_size", "the number of real columns over all ranks", vocab_size)
        for name, value in (("shard_offset", offset), ("shard_columns", real)):
            if value is not None:
                integer(name, value)
        self.vocab_size = vocab_size
        self.offset = min(group.index * columns, vocab_size) if offset is None else offset
        self.columns = max(0, min(columns, vocab_size - self.offset)) if real is None else real


class _ShardCall(Call):
    def __init__(self, options, gauge, wants_gradient, inplace, group, shard):
        super().__init__(options, gauge, wants_gradient, inplace)
        self.group = group
        self.shard = shard
        self.gathered = None

    def rows(self, logits, labels):
        # A rank without columns has one of padding.
        return super().rows(logits, labels) if logits.shape[-1] else logits.new_empty(labels.numel(), 1)

    def like_logits(self, gradient, shape):
        return super().like_logits(gradient, shape) if shape[-1] else gradient.new_empty(shape)

    def args(self, rows, labels, gradient=None, gauge=True):
        args = library.new("vocab_parallel_args")
        args.group_size, args.group_index = self.group.size, self.group.index
        args.vocab_size, args.shard_offset, args.shard_columns = self.shard.vocab_size, self.shard.offset, self.shard.columns
        args.step = self.group.exchange
        return args, self.fill(args.loss, rows, labels, gradient, gauge)

    def loss(self, rows, labels, gradient):
        args, alive = self.args(rows, labels, gradient)
        self.group.check_sizes(rows.device, rows.shape[0])
        size = ctypes.c_int64()
        library.call("vocab_parallel_contribution_bytes", rows.shape[0], ctypes.byref(size))
        contribution = torch.empty(size.value, dtype=torch.uint8, device=rows.device)
        library.call("vocab_parallel_begin", ctypes.byref(args), contribution.data_ptr())
        self.gathered = self.group.gather(contribution)
        losses = self.options.losses(args.loss, rows.shape[0], rows.device)
        library.call("vocab_parallel_finish", ctypes.byref(args), self.gathered.data_ptr())
        del alive
        return losses

    def gradient(self, rows, labels, upstream, gradient):
        args, alive = self.args(rows, labels, gradient, gauge=False)
        alive.append(set_upstream(args.loss, upstream))
        library.call("vocab_parallel_finish", ctypes.byref(args), self.gathered.data_ptr())
        del alive
