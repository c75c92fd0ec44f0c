"""Loops shaped like torchtitan's and Megatron's, with two ranks, as client/python/RECIPES.md says: the whole batch's gradient, and records that say so."""

import unittest

import torch

import lossgauge
import ring
from device import run_ranks

COLUMNS, PADDED, WIDTH, SEQUENCE, BATCH, MICRO_BATCHES = 21, 24, 6, 5, 2, 3


def micro_batches(rank=0):
    """Hidden states [batch, sequence, width], labels and a mask, with numbers of unmasked tokens that differ."""
    generator = torch.Generator(device="cpu").manual_seed(9 + rank)
    made = []
    for number in range(MICRO_BATCHES):
        hidden = torch.randn(BATCH, SEQUENCE, WIDTH, generator=generator, device="cpu")
        labels = torch.randint(0, COLUMNS, (BATCH, SEQUENCE), generator=generator, device="cpu")
        mask = torch.ones(BATCH, SEQUENCE, device="cpu")
        mask[0, :number + rank] = 0
        made.append(tuple(tensor.to(torch.empty(()).device) for tensor in (hidden, labels, mask)))
    return made


def head():
    return torch.linspace(-1, 1, PADDED * WIDTH).view(PADDED, WIDTH).sin()


def whole_gradient(batches):
    weight = head().cpu().double().requires_grad_()
    logits = torch.cat([hidden.view(-1, WIDTH) for hidden, _, _ in batches]).cpu().double() @ weight[:COLUMNS].t()
    labels = torch.cat([labels.masked_fill(mask == 0, -100).view(-1) for _, labels, mask in batches]).cpu()
    torch.nn.functional.cross_entropy(logits, labels).backward()
    return weight.grad, int((labels != -100).sum())


def _torchtitan(rank, world, directory, results):
    with lossgauge.Gauge(run="titan", ring_dir=directory, gradient_reduction="sum", vocab_size=COLUMNS) as gauge:
        weight, rates = head().requires_grad_(), 0.1

        def loss_fn(pred, labels, global_valid_tokens):
            return gauge.cross_entropy(pred, labels, vocab_size=COLUMNS, denominator=global_valid_tokens)

        samples = [(hidden, labels.masked_fill(mask == 0, -100)) for hidden, labels, mask in micro_batches(rank)]
        global_valid_tokens = sum((labels != -100).sum() for _, labels in samples).to(torch.float32)
        torch.distributed.all_reduce(global_valid_tokens)
        for hidden, labels in samples:
            loss_fn(hidden @ weight.t(), labels, global_valid_tokens).backward()
        torch.distributed.all_reduce(weight.grad)  # as FSDP with a divide factor of 1
        gauge.step(step=1, grad_norm=weight.grad.norm(), lr=rates)
        results[rank] = (weight.grad.cpu(), ring.records(gauge) if ring.CTL else None)


def _megatron(rank, world, directory, results):
    part = PADDED // world
    with lossgauge.Gauge(run="megatron", attempt="1", ring_dir=directory, gradient_reduction="sum", vocab_size=COLUMNS, tp=(world, rank), shard_offset=rank * part,
                         shard_columns=max(0, min(part, COLUMNS - rank * part))) as gauge:
        weight = head()[rank * part:(rank + 1) * part].clone().requires_grad_()

        def compute_language_model_loss(labels, logits):
            losses = gauge.vocab_parallel_cross_entropy(logits, labels.transpose(0, 1).contiguous(), reduction="none")
            return losses.transpose(0, 1).contiguous()

        total = 0
        for hidden, labels, loss_mask in micro_batches():
            logits = hidden.transpose(0, 1) @ weight.t()  # [sequence, batch, part]
            losses = compute_language_model_loss(labels.masked_fill(loss_mask == 0, -100), logits)
            (losses * loss_mask).sum().backward()
            total = total + loss_mask.sum()
        weight.grad /= total
        gauge.step(step=1, denominator=total, lr=0.1)
        results[rank] = (weight.grad.cpu(), ring.records(gauge) if ring.CTL else None)


class Recipes(unittest.TestCase):
    def check(self, gradient, expected, records, tokens, denominator):
        torch.testing.assert_close(gradient.double(), expected, rtol=1e-5, atol=1e-7)
        if records is None:
            return
        (record,) = records
        self.assertEqual(("1", str(tokens), denominator, denominator, str(MICRO_BATCHES)),
                         (record["step"], record["unmasked_tokens"], record["denominator_min"], record["denominator_max"], record["micro_batches"]))

    def test_torchtitan(self):
        results = run_ranks(self, 2, _torchtitan)
        expected, tokens = whole_gradient(micro_batches(0) + micro_batches(1))
        for rank, (gradient, records) in results.items():
            self.check(gradient, expected, records, whole_gradient(micro_batches(rank))[1], float(tokens))

    def test_megatron(self):
        results = run_ranks(self, 2, _megatron)
        expected, tokens = whole_gradient(micro_batches())
        part = PADDED // 2
        for rank, (gradient, records) in results.items():
            self.check(gradient, expected[rank * part:(rank + 1) * part], records, tokens, float(tokens))


if __name__ == "__main__":
    unittest.main()
