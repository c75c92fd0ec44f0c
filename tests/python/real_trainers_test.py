"""The integrations under the real transformers.Trainer and Lightning's, where they are installed; integrations_test has trainers written after them."""

import tempfile
import unittest

import torch

import lossgauge
import ring
from device import ON_CUDA
from lossgauge.integrations import huggingface
from lossgauge.integrations import lightning as callbacks

if ON_CUDA:
    torch.set_default_device(None)  # trainers place tensors themselves

try:
    import transformers
except ImportError:
    transformers = None
try:
    import lightning.pytorch as pl
except ImportError:
    try:
        import pytorch_lightning as pl
    except ImportError:
        pl = None

COLUMNS, LENGTH = 50, 12


def examples(count):
    torch.manual_seed(4)
    made = []
    for number in range(count):
        tokens = torch.randint(0, COLUMNS, (LENGTH,))
        labels = tokens.clone()
        labels[1:2 + number % 6] = -100
        made.append({"input_ids": tokens, "labels": labels})
    return made


def scored(batch):
    return sum(int((example["labels"][1:] != -100).sum()) for example in batch)


@unittest.skipUnless(transformers, "transformers is not installed")
class HuggingFace(unittest.TestCase):
    def test_steps_denominators_and_events(self):
        config = transformers.LlamaConfig(
            vocab_size=COLUMNS, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, max_position_embeddings=LENGTH)
        data, held_out = examples(12), examples(4)
        with tempfile.TemporaryDirectory() as directory:
            arguments = transformers.TrainingArguments(
                output_dir=directory + "/out", max_steps=2, per_device_train_batch_size=2, gradient_accumulation_steps=3, report_to=[], save_strategy="no",
                eval_strategy="steps", eval_steps=1, logging_steps=1, lr_scheduler_type="linear", learning_rate=1e-3, max_grad_norm=0.5,
                use_cpu=not ON_CUDA, disable_tqdm=True, dataloader_num_workers=0)
            trainer = transformers.Trainer(model=transformers.LlamaForCausalLM(config), args=arguments, train_dataset=data, eval_dataset={"one": held_out[:2], "two": held_out[2:]})
            order = []
            collate = trainer.data_collator

            def collate_noted(batch):
                # The same function collates what is held out. Examples come as copies without the columns that the model does not take; tensors are the same.
                if any(batch[0]["input_ids"] is example["input_ids"] for example in data):
                    order.append(batch)
                return collate(batch)

            trainer.data_collator = collate_noted
            gauge = lossgauge.Gauge(run="hf", ring_dir=directory, gradient_reduction="sum")
            path = gauge.state().steps_path
            huggingface.attach(trainer, gauge)
            trainer.train()
            self.assertTrue(gauge.closed)
            self.assertIn("eval_one_loss", trainer.evaluate())  # counted by nobody
            records = [record for record in ring.dump(path)["records"] if record["block"] == "0"]
            evaluations = [event["step"] for event in ring.dump(path.replace(".steps", ".events"))["records"] if event["kind"] == "phase_begin"]
        self.assertEqual(2, len(evaluations), "one for each evaluation, of both sets")
        logs = [entry for entry in trainer.state.log_history if "grad_norm" in entry]
        self.assertEqual([1, 2], [entry["step"] for entry in logs])
        for entry, record in zip(logs, records):
            for logged, recorded in (("grad_norm", record["grad_norm"]), ("learning_rate", record["learning_rate"]),
                                     ("loss", record["nll_sum"] / int(record["finite_tokens"]))):
                self.assertAlmostEqual(float(entry[logged]), recorded, delta=2e-4, msg=logged)
        self.assertEqual(["1", "2"], [record["step"] for record in records])
        for number, record in enumerate(records):
            tokens = sum(scored(batch) for batch in order[3 * number:3 * number + 3])
            self.assertEqual((str(tokens), float(tokens), float(tokens)), (record["unmasked_tokens"], record["denominator_min"], record["denominator_max"]))
            self.assertEqual("3", record["micro_batches"])


@unittest.skipUnless(pl, "Lightning is not installed")
class Lightning(unittest.TestCase):
    def test_steps_and_validation(self):
        with tempfile.TemporaryDirectory() as directory:
            gauge = lossgauge.Gauge(run="lightning", ring_dir=directory)
            path = gauge.state().steps_path

            class Module(pl.LightningModule):
                def __init__(self):
                    super().__init__()
                    self.head = torch.nn.Linear(COLUMNS, COLUMNS)

                def training_step(self, batch, index):
                    logits = self.head(torch.nn.functional.one_hot(batch["input_ids"], COLUMNS).float())
                    return gauge.cross_entropy(logits, batch["labels"], shift=True)

                validation_step = test_step = training_step

                def configure_optimizers(self):
                    return torch.optim.SGD(self.parameters(), lr=0.1)

            loader = torch.utils.data.DataLoader(examples(8), batch_size=2)
            trainer = pl.Trainer(
                max_epochs=1, accumulate_grad_batches=2, accelerator="gpu" if ON_CUDA else "cpu", devices=1, logger=False, enable_checkpointing=False,
                enable_progress_bar=False, enable_model_summary=False, callbacks=[callbacks.GaugeCallback(gauge)], num_sanity_val_steps=0)
            module, other = Module(), torch.utils.data.DataLoader(examples(2), batch_size=2)
            trainer.fit(module, loader, other)
            trainer.test(module, other, verbose=False)
            gauge.step()
            gauge.close()
            records = ring.dump(path)["records"]
        train = [(record["step"], record["tokens"]) for record in records if record["block"] == "0"]
        self.assertEqual([("1", str(4 * LENGTH)), ("2", str(4 * LENGTH))], train[:2])
        self.assertEqual([], [tokens for _, tokens in train[2:] if tokens != "0"], "the test's tokens are not a step's")
        self.assertAlmostEqual(0.1, records[0]["learning_rate"], places=6)


if __name__ == "__main__":
    unittest.main()
