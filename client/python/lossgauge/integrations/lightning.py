"""lossgauge in PyTorch Lightning:

    from lossgauge.integrations.lightning import GaugeCallback
    gauge = lossgauge.Gauge(run="llama8b-sft", gradient_reduction="mean")
    Trainer(callbacks=[GaugeCallback(gauge)], ...)

and in the module's training_step: loss = gauge.cross_entropy(logits, labels).
"""

try:
    from lightning.pytorch.callbacks import Callback
except ImportError:
    try:
        from pytorch_lightning.callbacks import Callback
    except ImportError:  # the Trainer asks for nothing but the methods
        Callback = object


class GaugeCallback(Callback):
    """Publishes one record an optimizer step, under Lightning's own step numbers (the first is 1), and its events; validation counts apart."""

    def __init__(self, gauge):
        self._gauge = gauge
        self._published = 0
        self._evaluation = None

    def on_train_start(self, trainer, pl_module):
        self._published = trainer.global_step
        if trainer.global_step > 0:
            self._gauge.resume(trainer.global_step, getattr(trainer, "ckpt_path", None))

    def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx, *unused):
        if trainer.global_step == self._published:  # gradients are being accumulated
            return
        self._published = trainer.global_step
        optimizers = trainer.optimizers
        self._gauge.step(step=trainer.global_step, lr=optimizers[0].param_groups[0]["lr"] if optimizers else None)

    def on_validation_start(self, trainer, pl_module):
        self._evaluation = self._gauge.phase("evaluation")
        self._evaluation.__enter__()

    def on_validation_end(self, trainer, pl_module):
        evaluation, self._evaluation = self._evaluation, None
        if evaluation is not None:
            evaluation.__exit__(None, None, None)

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        self._gauge.checkpoint_saved(trainer.global_step)

    def on_exception(self, trainer, pl_module, exception):
        self._gauge.abandon("{}: {}".format(type(exception).__name__, exception)[:200])

    def on_train_end(self, trainer, pl_module):
        self._gauge.close()
