"""The integrations under trainers that call as the real ones do: same hooks, same order, same arithmetic around the loss. (No registry has the real ones.)"""

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


class Trainer:
    """What transformers' Trainer does around a step of one process."""

    def __init__(self, model, accumulate, args):
        self.model, self.accumulate, self.args = model, accumulate, args
        self.compute_loss_func, self.callbacks = None, []
        self.accelerator = types.SimpleNamespace(num_processes=1)
        self.state = types.SimpleNamespace(global_step=args.begin)
        self.gradients = []

    def add_callback(self, callback):
        self.callbacks.append(callback)

    def tell(self, event, **more):
        for callback in self.callbacks:
            if hasattr(callback, event):
                getattr(callback, event)(self.args, self.state, None, **more)

    def get_batch_samples(self, epoch_iterator, num_batches, device=None):
        samples = [batch for _, batch in zip(range(num_batches), epoch_iterator)]
        return samples, sum((batch["labels"] != -100).sum() for batch in samples) if samples else None

    def compute_loss(self, batch, num_items_in_batch=None):
        batch = dict(batch)
        labels = batch.pop("labels")
        return self.compute_loss_func(self.model(batch["input_ids"]), labels, num_items_in_batch=num_items_in_batch)

    def train(self, steps):
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1 + step))
        self.tell("on_train_begin")
        stream = batches(steps * self.accumulate)
        for _ in range(steps):
            samples, items = self.get_batch_samples(stream, self.accumulate, torch.device(DEVICE))
            for batch in samples:
                self.compute_loss(batch, items).backward()
            self.gradients.append(self.model.weight.grad.clone())
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
            self.state.global_step += 1
            self.tell("on_step_end", lr_scheduler=schedule)
        self.tell("on_save")
        self.evaluate()
        self.tell("on_train_end")

    def evaluate(self):
        with torch.no_grad():
            loss = sum(self.compute_loss(batch) for batch in batches(2)) / 2
        self.tell("on_evaluate", metrics={"eval_loss": loss.item()})


class HuggingFace(unittest.TestCase):
    def run_trainer(self, **options):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        gauge = lossgauge.Gauge(run="hf", ring_dir=directory.name, gradient_reduction="sum")
        path = gauge.state().steps_path
        trainer = Trainer(Head(), 3, types.SimpleNamespace(output_dir="out", average_tokens_across_devices=True, begin=options.get("begin", 0)))
        huggingface.attach(trainer, gauge)
        trainer.train(2)
        self.assertTrue(gauge.closed)
        return trainer, ring.dump(path)["records"], ring.dump(path.replace(".steps", ".events"))["records"]

    def test_gradients_are_those_of_all_scored_tokens(self):
        trainer, records, _ = self.run_trainer()
        model = Head()
        samples = list(batches(3))
        logits = torch.cat([model(batch["input_ids"])["logits"][:, :-1].reshape(-1, COLUMNS) for batch in samples])
        labels = torch.cat([batch["labels"][:, 1:].reshape(-1) for batch in samples])
        torch.nn.functional.cross_entropy(logits, labels).backward()
        torch.testing.assert_close(trainer.gradients[0], model.weight.grad, rtol=1e-5, atol=1e-7)
        scored = int((labels != -100).sum())
        self.assertEqual((float(scored), float(scored)), (records[0]["denominator_min"], records[0]["denominator_max"]))
        self.assertEqual(str(scored), records[0]["unmasked_tokens"])
        # The Trainer's own number counts six labels that no logits are scored against.
        self.assertEqual(scored + 6, sum(int((batch["labels"] != -100).sum()) for batch in samples))

    def test_steps_and_events_have_the_trainers_numbers(self):
        _, records, events = self.run_trainer()
        train = [record for record in records if record["block"] == "0"]
        self.assertEqual(["1", "2"], [record["step"] for record in train])
        self.assertAlmostEqual(0.1 / 2, train[0]["learning_rate"], places=6)
        kinds = collections.Counter(event["kind"] for event in events)
        self.assertEqual(1, kinds["end"])
        self.assertIn("out/checkpoint-2", [event.get("text") for event in events])

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
            for number, batch in enumerate(batches(4)):
                gauge.cross_entropy(model(batch["input_ids"])["logits"], batch["labels"], shift=True).backward()
                if number % 2:
                    optimizer.step()
                    trainer.global_step += 1
                callback.on_train_batch_end(trainer, model, None, batch, number)
            callback.on_validation_start(trainer, model)
            gauge.cross_entropy(model(batch["input_ids"])["logits"].detach(), batch["labels"])
            callback.on_validation_end(trainer, model)
            callback.on_save_checkpoint(trainer, model, {})
            callback.on_exception(trainer, model, KeyError("boom"))
            callback.on_train_end(trainer, model)
            records, events = ring.dump(path)["records"], ring.dump(path.replace(".steps", ".events"))["records"]
        train = [record for record in records if record["block"] == "0"]
        self.assertEqual([("1", "28"), ("2", "28")], [(record["step"], record["tokens"]) for record in train])
        self.assertIn("KeyError: 'boom'", [event.get("text") for event in events if event["kind"] == "end"])


if __name__ == "__main__":
    unittest.main()
