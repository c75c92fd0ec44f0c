"""lossgauge in a Hugging Face Trainer (transformers 4.46 and newer):

    from lossgauge.integrations import huggingface
    gauge = lossgauge.Gauge(run="llama8b-sft", gradient_reduction="sum")
    trainer = Trainer(...)
    huggingface.attach(trainer, gauge)
    trainer.train()

gradient_reduction is "sum" there: with average_tokens_across_devices (the default of late) the Trainer multiplies each rank's loss by the number of ranks
before gradients are averaged, so that what comes out is the sum of what the ranks divided. Without it ranks with unequal numbers of tokens make a mean of
means; the gauge then says so.
"""

import torch

from ..denominator import count_unmasked
from ..options import shifted

try:
    from transformers import TrainerCallback
except ImportError:  # the Trainer asks for nothing but the methods
    TrainerCallback = object


def attach(trainer, gauge, *, shift=True, **loss_options):
    """Gives `trainer` lossgauge's loss, its records and its events. Before trainer.train(). `shift`: the model's logits at t predict label t + 1, as causal
    language models of transformers do. loss_options: of lossgauge.cross_entropy."""
    if getattr(trainer, "compute_loss_func", None) is not None:
        raise ValueError("trainer: expected one without a compute_loss_func of its own, got {!r}".format(trainer.compute_loss_func))

    def compute_loss(outputs, labels, num_items_in_batch=None):
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs.logits if hasattr(outputs, "logits") else outputs[0]
        return gauge.cross_entropy(logits, labels.to(logits.device), shift=shift, denominator=_divisor(num_items_in_batch), **loss_options)

    trainer.compute_loss_func = compute_loss
    _count_scored_labels(trainer, shift, loss_options.get("ignore_index", -100))
    evaluate = trainer.evaluate

    def evaluate_in_its_phase(*arguments, **options):
        with gauge.phase("evaluation"):
            return evaluate(*arguments, **options)

    trainer.evaluate = evaluate_in_its_phase
    callback = GaugeCallback(gauge)
    trainer.add_callback(callback)
    return callback


def _divisor(num_items_in_batch):
    if num_items_in_batch is None:
        return None
    if isinstance(num_items_in_batch, torch.Tensor):
        return num_items_in_batch.reshape(-1)[0]  # one for each GPU of this process under DataParallel, all the same
    return num_items_in_batch


def _count_scored_labels(trainer, shift, ignore_index):
    """The Trainer counts all labels that are not masked. A shifted loss never scores the first one of a sequence, so that the count is too large by one for
    each sequence that does not begin with a masked label; what is counted instead is what is scored."""
    if not shift or not hasattr(trainer, "get_batch_samples"):
        return
    get_batch_samples = trainer.get_batch_samples

    def with_scored_labels(epoch_iterator, num_batches, *more, **options):
        batches, counted = get_batch_samples(epoch_iterator, num_batches, *more, **options)
        if counted is None or not batches or "labels" not in batches[0]:
            return batches, counted
        scored = sum(count_unmasked(shifted(batch["labels"], ignore_index), ignore_index) for batch in batches).to(torch.int64)
        if getattr(trainer.args, "average_tokens_across_devices", False) and trainer.accelerator.num_processes > 1:
            scored = trainer.accelerator.gather(scored.to(trainer.accelerator.device)).sum()
        if isinstance(counted, torch.Tensor):
            return batches, scored.to(counted.device).reshape((1,) * counted.dim()).expand_as(counted)
        return batches, int(scored)

    trainer.get_batch_samples = with_scored_labels


class GaugeCallback(TrainerCallback):
    """Publishes one record an optimizer step, under the Trainer's own step numbers (the first is 1), and its events. The Trainer hands its gradient norm to
    nobody before the step is over; it is not recorded."""

    def __init__(self, gauge):
        self._gauge = gauge

    def on_train_begin(self, args, state, control, **kwargs):
        if state.global_step > 0:
            self._gauge.resume(state.global_step, getattr(args, "resume_from_checkpoint", None) or None)

    def on_step_end(self, args, state, control, lr_scheduler=None, **kwargs):
        rates = lr_scheduler.get_last_lr() if lr_scheduler is not None else []
        self._gauge.step(step=state.global_step, lr=rates[0] if rates else None)

    def on_evaluate(self, args, state, control, metrics=None, **kwargs):
        loss = (metrics or {}).get("eval_loss")
        if loss is not None:
            self._gauge.evaluation(state.global_step, loss, 0)

    def on_save(self, args, state, control, **kwargs):
        self._gauge.checkpoint_saved(state.global_step, "{}/checkpoint-{}".format(args.output_dir, state.global_step))

    def on_train_end(self, args, state, control, **kwargs):
        self._gauge.close()
