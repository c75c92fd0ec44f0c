"""lossgauge in PyTorch Lightning:

    from lossgauge.integrations.lightning import GaugeCallback
    gauge = lossgauge.Gauge(run="llama8b-sft", gradient_reduction="mean")
    Trainer(callbacks=[GaugeCallback(gauge)], ...)

and in the module's training_step: loss = gauge.cross_entropy(logits, labels). The gauge stays open after `fit`, since the module's other steps may call it, and
ends with the script, or with gauge.close().
"""

from ..arguments import words_of

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    try:
        from pytorch_lightning.callbacks import Callback
    except ImportError:  # the Trainer asks for nothing but the methods
        Callback = object


class GaugeCallback(Callback):
    """Publishes one record an optimizer step, under Lightning's own step numbers (the first is 1), and its events; validation and tests count apart."""

    def __init__(self, gauge):
        self._gauge = gauge
        self._published = 0
        self._rate = None
        self._evaluation = None

    def on_train_start(self, trainer, pl_module):
        self._published = trainer.global_step
        if trainer.global_step > 0 and not self._gauge.closed:
            self._gauge.resume(trainer.global_step, getattr(trainer, "ckpt_path", None))

    def on_before_optimizer_step(self, trainer, pl_module, optimizer, *unused):
        self._rate = optimizer.param_groups[0]["lr"]  # at the batch's end the schedule has gone on

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, *unused):
        if trainer.global_step == self._published or self._gauge.closed:  # gradients are being accumulated
            return
        self._published = trainer.global_step
        rate, self._rate = self._rate, None
        self._gauge.step(step=trainer.global_step, lr=rate)

    def on_validation_start(self, trainer, pl_module):
        if not self._gauge.closed:
            self._evaluation = self._gauge.phase("evaluation")
            self._evaluation.__enter__()

    def on_validation_end(self, trainer, pl_module):
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None:
            evaluation.__exit__(None, None, None)

    on_test_start, on_test_end = on_validation_start, on_validation_end

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        if not self._gauge.closed:
            self._gauge.checkpoint_saved(trainer.global_step)

    def on_exception(self, trainer, pl_module, exception):
        self._gauge.abandon(words_of(exception))
