"""The integrations under trainers that call as the real ones do: same hooks, same order, same arithmetic around the loss. real_trainers_test has the real
ones where they are installed."""

import collections
import tempfile
import types
import unittest

import torch

import lossgauge
import ring
from device import DEVICE
from lossgauge.integrations import huggingface, lightning

COLUMNS = 9


class Head(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.weight = torch.nn.Parameter(torch.randn(COLUMNS, COLUMNS) / 3)

    def forward(self, tokens):
        return {"logits": torch.nn.functional.one_hot(tokens, COLUMNS).float() @ self.weight}


def batches(number):
    torch.manual_seed(4)
    for i in range(number):
        labels = torch.randint(0, COLUMNS, (2, 7))
        labels[0, 1:1 + i % 5] = -100
        yield {"input_ids": labels.clamp(min=0), "labels": labels}


class Accelerator:
    num_processes = 1

    @staticmethod
    def clip_grad_norm_(parameters, most):
        return torch.nn.utils.clip_grad_norm_(parameters, most)


class Trainer:
    """What transformers' Trainer does around a step of one process, 4.46 to 4.53: all labels are counted."""

    def __init__(self, model, accumulate, args):
        self.model, self.accumulate, self.args = model, accumulate, args
        self.compute_loss_func, self.callbacks = None, []
        self.accelerator = Accelerator()
        self.state = types.SimpleNamespace(global_step=args.begin)
        self.gradients, self.norms = [], []

    def add_callback(self, callback):
        self.callbacks.append(callback)

    def tell(self, event, **more):
        for callback in self.callbacks:
            if hasattr(callback, event):
                getattr(callback, event)(self.args, self.state, None, **more)

    def get_batch_samples(self, epoch_iterator, num_batches, device=None):
        samples = [next(epoch_iterator) for _ in range(num_batches)]
        return samples, sum((batch["labels"] != -100).sum() for batch in samples)

    def compute_loss(self, batch, num_items_in_batch=None):
        batch = dict(batch)
        labels = batch.pop("labels")
        loss = self.compute_loss_func(self.model(batch["input_ids"]), labels, num_items_in_batch=num_items_in_batch)
        return loss if num_items_in_batch is None else loss * (self.args.n_gpu if self.args.n_gpu > 1 else self.accelerator.num_processes)

    def train(self, steps):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
        self.tell("on_train_begin")
        stream = iter(list(batches(steps * self.accumulate)))
        for _ in range(steps):
            samples, items = self.get_batch_samples(stream, self.accumulate, torch.device(DEVICE))
            for batch in samples:
                self.compute_loss(batch, items).backward()
            self.gradients.append(self.model.weight.grad.clone())
            self.norms.append(self.accelerator.clip_grad_norm_(self.model.parameters(), 1.0).item())
            self.tell("on_pre_optimizer_step", optimizer=optimizer, lr_scheduler=schedule)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            self.state.global_step += 1
            self.tell("on_step_end", optimizer=optimizer, lr_scheduler=schedule)
            if self.args.evaluates:
                self.evaluate()
        self.tell("on_save")
        self.evaluate()
        self.tell("on_train_end")

    def evaluate(self, sets=("first", "second")):
        if len(sets) > 1:  # a set of several is evaluated by one call each
            return [self.evaluate((one,)) for one in sets]
        with torch.no_grad():
            loss = sum(self.compute_loss(batch) for batch in batches(2)) / 2
        self.tell("on_evaluate", metrics={"eval_loss": loss.item()})
        return loss.item()


class LaterTrainer(Trainer):
    """5.0 and newer: the number of labels is a function of its own, which evaluation asks, too, and leaves out the first one where the model's loss does."""

    loss_shifts_labels = True

    def get_batch_samples(self, epoch_iterator, num_batches, device=None):
        samples = [next(epoch_iterator) for _ in range(num_batches)]
        return samples, self._get_num_items_in_batch(samples, device)

    def _get_num_items_in_batch(self, samples, device):
        counted = sum((batch["labels"][..., 1:] if self.loss_shifts_labels else batch["labels"]).ne(-100).sum() for batch in samples)
        return counted.to(device) if self.args.n_gpu == 1 else counted.to(device).unsqueeze(0).expand(self.args.n_gpu, -1)


class LaterTrainerOfAnotherLoss(LaterTrainer):
    loss_shifts_labels = False


class HuggingFace(unittest.TestCase):
    def run_trainer(self, kind=Trainer, evaluates=False, **options):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        gauge = lossgauge.Gauge(run="hf", ring_dir=directory.name, gradient_reduction="sum")
        path = gauge.state().steps_path
        trainer = kind(Head(), 3, types.SimpleNamespace(
            output_dir="out", average_tokens_across_devices=True, begin=options.get("begin", 0), evaluates=evaluates,
            label_smoothing_factor=options.get("smoothing", 0.0), n_gpu=options.get("gpus", 1)))
        huggingface.attach(trainer, gauge)
        trainer.train(2)
        self.assertTrue(gauge.closed)
        losses = trainer.evaluate()  # as many scripts do at their end
        self.assertTrue(losses[0] > 0)
        return trainer, ring.dump(path)["records"], ring.dump(path.replace(".steps", ".events"))["records"]

    def test_gradients_are_those_of_all_scored_tokens(self):
        for kind in (Trainer, LaterTrainer, LaterTrainerOfAnotherLoss):
            for smoothing, gpus in ((0.0, 1), (0.1, 1), (0.0, 2)):
                with self.subTest(kind=kind.__name__, smoothing=smoothing, gpus=gpus):
                    self.check_gradients(kind, smoothing, gpus)

    def check_gradients(self, kind, smoothing, gpus):
        trainer, records, _ = self.run_trainer(kind, smoothing=smoothing, gpus=gpus)
        model = Head()
        samples = list(batches(3))
        logits = torch.cat([model(batch["input_ids"])["logits"][:, :-1].reshape(-1, COLUMNS) for batch in samples])
        labels = torch.cat([batch["labels"][:, 1:].reshape(-1) for batch in samples])
        torch.nn.functional.cross_entropy(logits, labels, label_smoothing=smoothing).backward()
        torch.testing.assert_close(trainer.gradients[0], model.weight.grad, rtol=1e-5, atol=1e-7)
        scored = int((labels != -100).sum())
        self.assertEqual((float(scored), float(scored)), (records[0]["denominator_min"], records[0]["denominator_max"]))
        self.assertEqual(str(scored), records[0]["unmasked_tokens"])
        # The Trainer's own number counts six labels that no logits are scored against.
        self.assertEqual(scored + 6, sum(int((batch["labels"] != -100).sum()) for batch in samples))

    def test_a_step_without_a_scored_label_has_loss_0_and_no_gradient(self):
        for items in (0, torch.tensor(0), None):
            with self.subTest(items=items), tempfile.TemporaryDirectory() as directory, lossgauge.Gauge(run="masked", ring_dir=directory) as gauge:
                trainer = Trainer(Head(), 1, types.SimpleNamespace(begin=0, n_gpu=1))
                huggingface.attach(trainer, gauge)
                batch = next(iter(batches(1)))
                loss = trainer.compute_loss(dict(batch, labels=torch.full_like(batch["labels"], -100)), items)
                loss.backward()
                self.assertEqual((0.0, 0), (loss.item(), int(trainer.model.weight.grad.count_nonzero())))

    def test_steps_and_events_have_the_trainers_numbers(self):
        _, records, events = self.run_trainer()
        train = [record for record in records if record["block"] == "0"]
        self.assertEqual(["1", "2"], [record["step"] for record in train])
        self.assertAlmostEqual(0.1, train[0]["learning_rate"], places=6)
        self.assertAlmostEqual(0.1 / 2, train[1]["learning_rate"], places=6)
        kinds = collections.Counter(event["kind"] for event in events)
        self.assertEqual(1, kinds["end"])
        self.assertIn("out/checkpoint-2", [event.get("text") for event in events])

    def test_the_trainers_gradient_norm_is_recorded(self):
        trainer, records, _ = self.run_trainer()
        train = [record for record in records if record["block"] == "0"]
        for norm, record in zip(trainer.norms, train):
            self.assertAlmostEqual(norm, record["grad_norm"], places=6)

    def test_evaluation_between_steps_moves_nothing(self):
        for kind in (Trainer, LaterTrainer):
            without, between = ([record for record in self.run_trainer(kind, evaluates)[1] if record["block"] == "0"] for evaluates in (False, True))
            for name in ("mask_fingerprint", "nll_sum", "denominator_max", "worst_row_position"):
                self.assertEqual([record[name] for record in without], [record[name] for record in between], name)

    def test_evaluation_is_not_in_the_step(self):
        _, records, events = self.run_trainer()
        self.assertEqual([], [record for record in records if record["block"] == "0" and record["step"] == "3"])
        self.assertIn("2", [event["step"] for event in events if event["kind"] == "evaluation"])

    def test_a_resumed_trainer_goes_on_counting(self):
        _, records, events = self.run_trainer(begin=40)
        self.assertEqual(["41", "42"], [record["step"] for record in records if record["block"] == "0"])
        self.assertIn("resume", [event["kind"] for event in events])

    def test_a_loss_function_of_its_own_is_not_replaced(self):
        trainer = Trainer(Head(), 1, types.SimpleNamespace(begin=0))
        trainer.compute_loss_func = print
        with self.assertRaisesRegex(ValueError, "compute_loss_func"):
            huggingface.attach(trainer, None)


class Lightning(unittest.TestCase):
    def test_records_optimizer_steps_and_events(self):
        with tempfile.TemporaryDirectory() as directory:
            gauge = lossgauge.Gauge(run="lightning", ring_dir=directory)
            path = gauge.state().steps_path
            callback, model = lightning.GaugeCallback(gauge), Head()
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            trainer = types.SimpleNamespace(global_step=0, optimizers=[optimizer], ckpt_path=None)
            callback.on_train_start(trainer, model)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
            for number, batch in enumerate(batches(4)):
                gauge.cross_entropy(model(batch["input_ids"])["logits"], batch["labels"], shift=True).backward()
                if number % 2:
                    callback.on_before_optimizer_step(trainer, model, optimizer)
                    optimizer.step()
                    trainer.global_step += 1
                    schedule.step()
                callback.on_train_batch_end(trainer, model, None, batch, number)
            callback.on_validation_start(trainer, model)
            gauge.cross_entropy(model(batch["input_ids"])["logits"].detach(), batch["labels"])
            callback.on_validation_end(trainer, model)
            callback.on_save_checkpoint(trainer, model, {})
            callback.on_exception(trainer, model, KeyError("boom"))
            callback.on_train_batch_end(trainer, model, None, batch, number)  # nothing more, and no error either
            records, events = ring.dump(path)["records"], ring.dump(path.replace(".steps", ".events"))["records"]
        train = [record for record in records if record["block"] == "0"]
        self.assertEqual([("1", "28"), ("2", "28")], [(record["step"], record["tokens"]) for record in train])
        self.assertEqual([0.1, 0.05], [round(record["learning_rate"], 6) for record in train])
        self.assertIn("KeyError: 'boom'", [event.get("text") for event in events if event["kind"] == "end"])


if __name__ == "__main__":
    unittest.main()
