"""The telemetry handle of one rank: what two lines of a training script hold."""

import ctypes
import functools
import itertools
import os
import sys
import weakref

from . import abi, errors, library
from .arguments import encoded, host_number, integer, refuse, words_of
from .denominator import Denominator
from .gauge_options import gauge_options
from .gauge_state import GaugeState
from .observation import observation
from .phases import Phase
from .verdict import VerdictPoll

_numbers = itertools.count(1)
_by_graph_name = weakref.WeakValueDictionary()


def gauge_named(graph_name):
    """The gauge that a compiled graph knows by this name; None: none, or one that is gone."""
    return _by_graph_name.get(graph_name)


def _outside_graphs(method):
    """A method that torch.compile does not trace: the graph breaks there."""

    @functools.wraps(method)
    def call(self, *arguments, **options):
        if "torch" not in sys.modules:  # and nobody compiles
            return method(self, *arguments, **options)
        from .compiling import outside_graphs

        return outside_graphs(method, self, *arguments, **options)

    return call


class Gauge:
    """Counts loss calls of this rank and publishes one record a step.

        with lossgauge.Gauge(run="llama8b-sft") as gauge:
            for batch in batches:
                loss = gauge.cross_entropy(model(batch.tokens), batch.labels)
                loss.backward()
                gauge.step(grad_norm=norm)

    Always usable: where the ring cannot be made (no space, no permission, a second process of the same rank), `state().message` says why, nothing is
    counted, and losses and gradients are the same. Only an argument that cannot be right raises.

    run: stable name of the run across restarts; None: LOSSGAUGE_RUN. attempt: which start of it this is; None: LOSSGAUGE_ATTEMPT or the launcher's.
    rank, world_size: None: torch.distributed if it is initialised, else the launcher's environment.
    dp, tp, pp, cp, ep: (size, index) of this rank along a parallel axis. Without dp, what the others leave of the world is data-parallel.
    gradient_reduction: what the job does to gradients over data-parallel ranks: "mean" (DDP, FSDP), "sum", or "unknown".
    vocab_size: real columns V over all shards; needed for byte_table. shard_offset, shard_columns: this rank's of them under tensor parallelism; 0 columns: all
        that follow the offset.
    label_smoothing, z_loss: as declared by the job, for the record.
    ring_dir: None: LOSSGAUGE_RING_DIR, else /dev/shm/lossgauge-<uid>. group: name of a group that may read the ring.
    byte_table: UTF-8 bytes of each token (lossgauge.byte_table), for bits per byte. has_loss: False on ranks without a head (pipeline stages): none is missed.
    blocks: names of the counter blocks, at most 8. first_step: number of the first step.
    sidecar: host:port or URL that `verdict` asks over HTTP; None: LOSSGAUGE_SIDECAR, else 127.0.0.1:9788.

    Closed by `close`, by the end of the `with` block, or at the interpreter's exit; an exception that ends the block or the script is recorded as such,
    and the run is not shown as finished.
    """

    def __init__(self, run=None, *, attempt=None, rank=None, world_size=None, dp=None, tp=(1, 0), pp=(1, 0), cp=(1, 0), ep=(1, 0), has_loss=True,
                 gradient_reduction="unknown", vocab_size=0, shard_offset=0, shard_columns=0, label_smoothing=0.0, z_loss=0.0, ring_dir=None,
                 group=None, byte_table=None, blocks=None, first_step=0, sidecar=None):
        options, kept = gauge_options(
            run, attempt=attempt, rank=rank, world_size=world_size, dp=dp, tp=tp, pp=pp, cp=cp, ep=ep, has_loss=has_loss, gradient_reduction=gradient_reduction,
            vocab_size=vocab_size, shard_offset=shard_offset, shard_columns=shard_columns, label_smoothing=label_smoothing, z_loss=z_loss, ring_dir=ring_dir,
            group=group, byte_table=byte_table, blocks=blocks, first_step=first_step)
        # Whatever may refuse an argument stands before the library opens a gauge: nobody would close that.
        self._verdict = VerdictPoll(run or os.environ.get("LOSSGAUGE_RUN"), sidecar)

        handle = ctypes.c_void_p()
        code = library.load().lg_gauge_open(ctypes.byref(options), ctypes.byref(handle))
        del kept  # read by now
        if not handle.value:
            raise errors.from_code(code, library.last_error())
        self._handle = handle
        self._device = None
        self._positions = 0  # of the step so far: micro-batches follow one another
        self._open_phases = dict.fromkeys(abi.PHASES.values(), 0)  # how often each was entered
        self._apart = 0  # of these, those whose losses are not the step's
        self._kept = []  # scalars that a device reads when it publishes
        self.vocab_size = vocab_size
        self.gradient_reduction = gradient_reduction
        self._denominator = Denominator(self)
        self.graph_name = "gauge-{}".format(next(_numbers))
        _by_graph_name[self.graph_name] = self
        self._finalizer = weakref.finalize(self, _end, handle, os.getpid())
        self._why_closed = "was closed"

    # ---- losses ------------------------------------------------------------------------------------------------------------------------------------

    def cross_entropy(self, logits, labels, **options):
        """lossgauge.cross_entropy, counted. After `accumulate` its denominator is the one of the whole step unless another is given."""
        from .loss_on_logits import cross_entropy

        return cross_entropy(logits, labels, gauge=self, **options)

    def linear_cross_entropy(self, hidden, weight, labels, bias=None, **options):
        """lossgauge.linear_cross_entropy, counted. After `accumulate` its denominator is the one of the whole step unless another is given."""
        from .loss_on_hidden import linear_cross_entropy

        return linear_cross_entropy(hidden, weight, labels, bias, gauge=self, **options)

    def vocab_parallel_cross_entropy(self, logits, labels, **options):
        """lossgauge.vocab_parallel_cross_entropy, counted. After `accumulate` its denominator is the one of the whole step unless another is given."""
        from .vocab_parallel import vocab_parallel_cross_entropy

        return vocab_parallel_cross_entropy(logits, labels, gauge=self, **options)

    def vocab_parallel_linear_cross_entropy(self, hidden, weight, labels, bias=None, **options):
        """lossgauge.vocab_parallel_linear_cross_entropy, counted. After `accumulate` its denominator is the one of the whole step unless another is given."""
        from .vocab_parallel_head import vocab_parallel_linear_cross_entropy

        return vocab_parallel_linear_cross_entropy(hidden, weight, labels, bias, gauge=self, **options)

    def observe_logits(self, logits, labels, **options):
        """Reads logits once for their signals, beside a loss of another library (lossgauge.observe_logits)."""
        from .loss_on_logits import observe_logits

        observe_logits(logits, labels, gauge=self, **options)

    @_outside_graphs
    def observe(self, loss_sum, tokens, *, positions=None, nonfinite_rows=0, denominator=0.0, grad_norm=None, block=None):
        """Adds a loss that was computed elsewhere: `loss_sum` in nats over `tokens` unmasked tokens, of `positions` seen (None: as many).

        loss_sum, tokens, denominator, grad_norm: numbers or one-element tensors; those on a device are read there, without waiting. What is read so is not
        refused: a count out of range becomes the nearest in it, a sum below 0 counts like one that is not finite. positions, nonfinite_rows: numbers.
        """
        self._check_open()
        seen, kept = observation(loss_sum, tokens, positions, nonfinite_rows, denominator, block)
        if self._device is None:
            self._device = next((value.device for value in kept), None)
        seen.stream = self._stream()
        library.call("gauge_observe", self._handle, ctypes.byref(seen))
        if grad_norm is not None:
            self._set_scalar("grad_norm", abi.GRAD_NORM, grad_norm)

    # ---- denominator over micro-batches and ranks ------------------------------------------------------------------------------------------------------

    @_outside_graphs
    def accumulate(self, labels, *, ignore_index=-100, shift=False, group=None):
        """Counts the unmasked labels of all micro-batches of the coming step, over the data-parallel ranks of `group` (None: the default process group, if
        there is one), and returns the step's denominator as a one-element tensor: what every micro-batch must divide by so that their gradients add up to
        that of the whole step. Loss calls of this gauge use it until `step`. `labels`: the label tensors of the micro-batches, or their number if it is known.
        One all-reduce; the host waits for nothing."""
        self._check_open()
        return self._denominator.accumulate(labels, ignore_index, shift, group)

    @_outside_graphs
    def scale_gradients(self, parameters, *, group=None):
        """For micro-batches with reduction="sum": divides the gradients by the unmasked tokens of the step's loss calls, over the data-parallel ranks of
        `group`. Honours gradient_reduction. One all-reduce; the host waits for nothing."""
        self._check_open()
        self._denominator.scale_gradients(parameters, group)

    # ---- the step ------------------------------------------------------------------------------------------------------------------------------------

    @_outside_graphs
    def step(self, *, grad_norm=None, lr=None, denominator=None, loss=None, step=None):
        """Ends the step: publishes one record and never waits. Numbers, or one-element tensors, which are read where they are.

        grad_norm: the job's own global gradient norm. lr: its learning rate. denominator: what it divided sums by; 0, of a step without unmasked tokens, is as
            if not given. loss: the loss that it logs, a number.
        step: number of the step being ended (default: one more than the last).
        """
        self._check_open()
        if step is not None:
            library.call("gauge_set_step", self._handle, integer("step", step))
        for name, which, value in (("grad_norm", abi.GRAD_NORM, grad_norm), ("lr", abi.LEARNING_RATE, lr), ("denominator", abi.DENOMINATOR, denominator)):
            if value is not None and not (which == abi.DENOMINATOR and _is_zero(value)):
                self._set_scalar(name, which, value)
        if loss is not None:
            reported = library.new("reported_loss")
            reported.value = host_number("loss", loss)
            library.call("gauge_set_reported_loss", self._handle, ctypes.byref(reported))
        library.call("gauge_publish", self._handle, self._stream())
        self._denominator.end_step()
        self._positions = 0

    def phase(self, name):
        """A context in which the job does something else: "evaluation" and "warm_up" count in block "eval" and not into the step; "checkpoint",
        "data_loading" and "other" say why no step comes. The same phase inside of itself changes nothing."""
        if not isinstance(name, str) or name not in abi.PHASES or name == "train":
            refuse("phase", "one of " + ", ".join(sorted(set(abi.PHASES) - {"train"})), repr(name))
        return Phase(self, abi.PHASES[name])

    @_outside_graphs
    def checkpoint_saved(self, step, path=""):
        """A whole checkpoint of the state after `step` is at `path`: a verdict names the newest at or before the last good step."""
        self._check_open()
        library.call("gauge_checkpoint_saved", self._handle, integer("step", step), encoded("path", path))

    @_outside_graphs
    def resume(self, step, path=None):
        """The job goes on after `step`; the next record is of step + 1."""
        self._check_open()
        library.call("gauge_resume", self._handle, integer("step", step), encoded("path", path))

    @_outside_graphs
    def evaluation(self, step, loss, tokens):
        """Result of an evaluation: mean loss in nats over `tokens`."""
        self._check_open()
        library.call("gauge_evaluation", self._handle, integer("step", step), host_number("loss", loss), integer("tokens", tokens))

    @_outside_graphs
    def note(self, step, text):
        """Free text about `step`, kept with the run's events. Beyond 936 bytes it is cut."""
        self._check_open()
        library.call("gauge_note", self._handle, integer("step", step), encoded("text", text))

    @_outside_graphs
    def verdict(self):
        """What the sidecar last said of this run, without waiting for it: see lossgauge.Verdict. The first call starts a thread that asks every few
        seconds; until it has an answer, the action is "unknown"."""
        return self._verdict.last()

    # ---- life ------------------------------------------------------------------------------------------------------------------------------------------

    @_outside_graphs
    def state(self):
        """What the library says of itself (GaugeState)."""
        self._check_open()
        raw = abi.GaugeState(struct_size=ctypes.sizeof(abi.GaugeState))
        library.call("gauge_get_state", self._handle, ctypes.byref(raw))
        return GaugeState(raw)

    @property
    def closed(self):
        return not self._finalizer.alive

    def close(self, reason=None):
        """The clean end of the run. A second call does nothing."""
        reason = encoded("reason", reason)
        if self._finalizer.detach() is not None:
            self._verdict.stop()
            library.load().lg_gauge_close(self._handle, reason)

    def abandon(self, reason):
        """The job failed by its own judgement: the run is not shown as finished."""
        reason = encoded("reason", reason)
        if self._finalizer.detach() is not None:
            self._verdict.stop()
            library.load().lg_gauge_abandon(self._handle, reason)

    # A model may hold its gauge, and is copied for averages of weights or saved whole. A copy in this process is the same gauge, since a rank has one; in
    # another process, or later, there is none.
    def __copy__(self):
        return self

    def __deepcopy__(self, memo):
        return self

    def __reduce__(self):
        return _restored, ()

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        if kind is None or isinstance(value, SystemExit) and value.code in (None, 0):
            self.close()
        else:
            self.abandon(words_of(value))

    def complete(self, options, labels, columns, wants_gradient, again):
        """Gives a loss call (LossOptions) what the step knows: its denominator, and where in the step the call's positions begin. again: in_recomputation()."""
        self._check_open()
        self._denominator.complete(options)
        if again:  # divides by the same, and was counted
            return
        if options.reduction == "sum" and wants_gradient:
            self._denominator.count(labels, options.ignore_index, options.vocab_size or columns)
        if options.position_base is None and self.in_step(options):
            options.position_base = self._positions
            self._positions += labels.numel()

    def complete_denominator(self, options):
        self._denominator.complete(options)

    def in_step(self, options):
        """Whether a loss call is one of the step's micro-batches, and of no other counter block."""
        return options.block == 0 or options.block == -1 and self._apart == 0

    def _check_open(self):
        if self.closed:
            raise errors.FailedPrecondition("gauge: expected an open one, got one that " + self._why_closed)

    def _handle_for(self, device):
        if device.type == "cuda":
            self._device = device
        return self._handle

    def _stream(self):
        if self._device is None:
            return None
        from .tensors import stream_of

        return stream_of(self._device)

    def _set_scalar(self, name, which, value):
        """A number at once; a tensor of a device by its address, for the publishing kernel to read."""
        import torch

        if hasattr(value, "full_tensor"):  # a norm over shards (fully_shard) that its ranks have yet to add up
            value = value.full_tensor()
        if isinstance(value, torch.Tensor) and value.is_cuda and value.numel() == 1:
            value = value.detach()
            if value.dtype not in (torch.float32, torch.float64):
                value = value.to(torch.float32)
            if self._device is None:
                self._device = value.device
            self._kept = self._kept[-8:] + [value]
            dtype = abi.FP64 if value.dtype == torch.float64 else abi.FP32
            library.call("gauge_set_scalar_pointer", self._handle, which, value.data_ptr(), dtype)
        else:
            library.call("gauge_set_scalar", self._handle, which, host_number(name, value))


def _is_zero(value):
    """Of a number or a tensor of the host's; one of a device is not read."""
    return not getattr(value, "is_cuda", False) and host_number("denominator", value) == 0


def _restored():
    """What a pickle gives back of a gauge: a closed one."""
    gauge = Gauge.__new__(Gauge)
    gauge._why_closed = "was pickled; open one in this process (lossgauge.Gauge)"
    gauge._verdict = VerdictPoll(None, None)
    gauge._finalizer = weakref.finalize(gauge, _end, None, 0)
    gauge._finalizer.detach()
    return gauge


def _end(handle, pid):
    """A gauge that nobody closed. sys.last_value is there when an exception ended the script."""
    if os.getpid() != pid:
        return
    error = getattr(sys, "last_value", None)
    if error is not None:
        library.load().lg_gauge_abandon(handle, encoded("reason", words_of(error)))
    else:
        library.load().lg_gauge_close(handle, None)
