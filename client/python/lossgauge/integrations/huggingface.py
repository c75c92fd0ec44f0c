"""lossgauge in a Hugging Face Trainer (transformers 4.46 and newer):

    from lossgauge.integrations import huggingface
    gauge = lossgauge.Gauge(run="llama8b-sft", gradient_reduction="sum")
    trainer = Trainer(...)
    huggingface.attach(trainer, gauge)
    trainer.train()

gradient_reduction is "sum" there: with average_tokens_across_devices (the default of late) the Trainer multiplies each rank's loss by the number of ranks
before gradients are averaged, so that what comes out is the sum of what the ranks divided. Without it ranks with unequal numbers of tokens make a mean of
means; the gauge then says so.

The gauge is closed at the end of training; losses afterwards (trainer.evaluate()) are the same and are not counted.
"""

import contextlib

import torch

from ..loss_on_logits import cross_entropy

try:
    from transformers import TrainerCallback
except ImportError:  # the Trainer asks for nothing but the methods
    TrainerCallback = object


def attach(trainer, gauge, *, shift=True, **loss_options):
    """Gives `trainer` lossgauge's loss, its records and its events. Before trainer.train(). `shift`: the model's logits at t predict label t + 1, as causal
    language models of transformers do. loss_options: of lossgauge.cross_entropy; label_smoothing is the Trainer's label_smoothing_factor if not given."""
    if getattr(trainer, "compute_loss_func", None) is not None:
        raise ValueError("trainer: expected one without a compute_loss_func of its own, got {!r}".format(trainer.compute_loss_func))
    loss_options.setdefault("label_smoothing", float(getattr(trainer.args, "label_smoothing_factor", 0.0) or 0.0))

    def compute_loss(outputs, labels, num_items_in_batch=None):
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs.logits if hasattr(outputs, "logits") else outputs[0]
        if isinstance(labels, torch.Tensor):
            labels = labels.to(logits.device)
        counted_by = None if gauge.closed else gauge
        loss = cross_entropy(logits, labels, gauge=counted_by, shift=shift, denominator=_divisor(num_items_in_batch), **loss_options)
        # Under DataParallel the Trainer multiplies by the GPUs of this process, as if each had made a loss of its part. This one is of all parts.
        gpus = getattr(trainer.args, "n_gpu", 1)
        return loss / gpus if gpus > 1 and num_items_in_batch is not None else loss

    trainer.compute_loss_func = compute_loss
    _count_scored_labels(trainer, shift, loss_options.get("ignore_index", -100))
    evaluate = trainer.evaluate

    def evaluate_in_its_phase(*arguments, **options):
        with contextlib.nullcontext() if gauge.closed else gauge.phase("evaluation"):
            return evaluate(*arguments, **options)

    trainer.evaluate = evaluate_in_its_phase
    callback = GaugeCallback(gauge)
    _remember_gradient_norms(trainer, callback)
    trainer.add_callback(callback)
    return callback


def _divisor(num_items_in_batch):
    if num_items_in_batch is None:
        return None
    if isinstance(num_items_in_batch, torch.Tensor):
        return num_items_in_batch.reshape(-1)[0]  # one for each GPU of this process under DataParallel, all the same
    # A step whose labels are all masked has no tokens to divide by. As a number 0 is refused, as a tensor it is read when the loss is: 0, and no gradient.
    return num_items_in_batch if num_items_in_batch != 0 else torch.tensor(0.0)


def _count_scored_labels(trainer, shift, ignore_index):
    """Before 5.0 the Trainer counts the first label of a sequence, which a shifted loss never scores, and at all times it knows no ignore_index but its own. So
    what it counts are labels masked as the loss takes them; the rest of its arithmetic (ranks that share a batch, averages over devices) stays its own."""

    def as_scored(batch):
        try:
            labels = batch["labels"]
            masked = (labels == ignore_index) | (labels < 0)
            if shift:
                masked[..., 0] = True
            return dict(batch, labels=labels.masked_fill(masked, -100))
        except (KeyError, TypeError, AttributeError, IndexError):  # nothing that the Trainer would count
            return batch

    if hasattr(trainer, "_get_num_items_in_batch"):
        count = trainer._get_num_items_in_batch
        trainer._get_num_items_in_batch = lambda samples, *more, **options: count([as_scored(batch) for batch in samples], *more, **options)
    elif hasattr(trainer, "get_batch_samples"):
        get_batch_samples = trainer.get_batch_samples

        def with_scored_labels(epoch_iterator, *more, **options):
            kept = []

            def masked():
                for batch in epoch_iterator:
                    kept.append(batch)
                    yield as_scored(batch)

            _, counted = get_batch_samples(masked(), *more, **options)
            return kept, counted

        trainer.get_batch_samples = with_scored_labels


def _remember_gradient_norms(trainer, callback):
    """The Trainer gives its gradient norm to no callback; it takes it from here."""
    clip = getattr(trainer.accelerator, "clip_grad_norm_", None)
    if clip is None:
        return

    def clip_and_remember(*arguments, **options):
        callback.grad_norm = clip(*arguments, **options)
        return callback.grad_norm

    trainer.accelerator.clip_grad_norm_ = clip_and_remember


class GaugeCallback(TrainerCallback):
    """Publishes one record an optimizer step, under the Trainer's own step numbers (the first is 1), and its events."""

    def __init__(self, gauge):
        self._gauge = gauge
        self._rate = None
        self.grad_norm = None

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step > 0 and not self._gauge.closed:
            self._gauge.resume(state.global_step, getattr(args, "resume_from_checkpoint", None) or None)

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        self._rate = optimizer.param_groups[0]["lr"] if optimizer is not None else None  # at the step's end the schedule has gone on

    def on_step_end(self, args, state, control, **kwargs):
        if self._gauge.closed:
            return
        rate, norm, self._rate, self.grad_norm = self._rate, self.grad_norm, None, None
        self._gauge.step(step=state.global_step, lr=rate, grad_norm=norm if isinstance(norm, (int, float, torch.Tensor)) else None)

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        loss = (metrics or {}).get("eval_loss")
        if loss is not None and not self._gauge.closed:
            self._gauge.evaluation(state.global_step, loss, 0)

    def on_save(self, args, state, control, **kwargs):
        if not self._gauge.closed:
            self._gauge.checkpoint_saved(state.global_step, "{}/checkpoint-{}".format(args.output_dir, state.global_step))

    def on_train_end(self, args, state, control, **kwargs):
        self._gauge.close()
