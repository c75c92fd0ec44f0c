"""A head whose rows are spread over the ranks of a group: loss and gradients of the whole, the same bits of the loss on every rank."""

import tempfile
import unittest

import torch

import lossgauge
import oracle
import ring
from device import run_ranks

ROWS, COLUMNS, WIDTH = 10, 61, 16
SHARDS = {2: [40, 21], 3: [20, 0, 41]}
OPTIONS = [dict(), dict(reduction="sum", z_loss=1e-3, chunk_rows=3), dict(reduction="none", label_smoothing=0.1), dict(logit_softcap=7.0, denominator=5.0)]


def problem():
    torch.manual_seed(5)
    hidden, weight, bias = torch.randn(2, ROWS // 2, WIDTH), torch.randn(COLUMNS, WIDTH) / 3, torch.randn(COLUMNS)
    labels = torch.randint(0, COLUMNS, (2, ROWS // 2))
    labels[0, 1], labels[1, 0] = -100, COLUMNS - 1
    return hidden, weight, bias, labels


def factors(options):
    return torch.linspace(-1, 2, ROWS).view(2, -1) if options.get("reduction") == "none" else torch.tensor(-2.5)


def _losses(rank, world, directory, results):
    hidden, weight, bias, labels = problem()
    offset = sum(SHARDS[world][:rank])
    own = slice(offset, offset + SHARDS[world][rank])
    with tempfile.TemporaryDirectory() as directory, lossgauge.Gauge(
            run="head", attempt="1", ring_dir=directory, tp=(world, rank), vocab_size=COLUMNS, shard_offset=offset, shard_columns=SHARDS[world][rank]) as gauge:
        for number, options in enumerate(OPTIONS):
            leaves = [tensor.clone().requires_grad_() for tensor in (hidden, weight[own], bias[own])]
            loss = gauge.vocab_parallel_linear_cross_entropy(leaves[0], leaves[1], labels, leaves[2], shard_offset=offset, **options)
            passes = []
            for retain in (True, False):
                (loss * factors(options)).sum().backward(retain_graph=retain)
                passes.append([leaf.grad.cpu() for leaf in leaves])
                for leaf in leaves:
                    leaf.grad = None
            results[number, rank] = (loss.detach().cpu(), passes)
        gauge.step()
        results["record", rank] = ring.records(gauge)[0] if ring.CTL else None


def _contradictions(rank, world, directory, results):
    hidden, weight, bias, labels = problem()
    offset = sum(SHARDS[world][:rank])
    own = weight[offset:offset + SHARDS[world][rank]]
    said = []
    for options in (dict(chunk_rows=4 + rank), dict(label_smoothing=0.1 * rank), dict(shard_offset=0), dict(vocab_size=None), dict()):
        try:
            options = dict(dict(shard_offset=offset, vocab_size=COLUMNS), **options)
            said.append(lossgauge.vocab_parallel_linear_cross_entropy(hidden, own, labels, **options).item())
        except lossgauge.Error as error:
            said.append("{}: {}".format(type(error).__name__, error))
    results[rank] = said


class VocabParallelHead(unittest.TestCase):
    def test_losses_and_gradients_are_those_of_the_whole(self):
        for world in SHARDS:
            results = run_ranks(self, world, _losses)
            for number, options in enumerate(OPTIONS):
                with self.subTest(world=world, options=options):
                    hidden, weight, bias, labels = (tensor.cpu() for tensor in problem())
                    whole = [tensor.double().requires_grad_() for tensor in (hidden, weight, bias)]
                    logits = whole[0].view(ROWS, WIDTH) @ whole[1].t() + whole[2]
                    expected = oracle.reduced(logits, labels.view(-1), **{name: value for name, value in options.items() if name != "chunk_rows"})
                    (expected.view(-1) * factors(options).cpu().view(-1)).sum().backward()
                    for rank in range(world):
                        loss, passes = results[number, rank]
                        self.assertTrue(torch.equal(loss, results[number, 0][0]), "other bits on another rank")
                        torch.testing.assert_close(loss.double().view(-1), expected.detach().view(-1), rtol=5e-6, atol=1e-6)
                        offset = sum(SHARDS[world][:rank])
                        own = slice(offset, offset + SHARDS[world][rank])
                        for gradients in passes:
                            for got, right in zip(gradients, (whole[0].grad, whole[1].grad[own], whole[2].grad[own])):
                                torch.testing.assert_close(got.double(), right, rtol=1e-4, atol=1e-5)
            records = [results["record", rank] for rank in range(world)]
            if records[0] is not None:
                for field in ("nll_sum", "unmasked_tokens", "mask_fingerprint", "log_z_sum"):
                    self.assertEqual([records[0][field]] * world, [record[field] for record in records], field)
                self.assertEqual(str(len(OPTIONS) * 9), records[0]["unmasked_tokens"], "a second pass was counted")
                self.assertEqual(len(OPTIONS) * 9, sum(int(record["target_hits"]) for record in records))

    def test_ranks_that_contradict_each_other_are_refused_on_all(self):
        for rank, said in run_ranks(self, 2, _contradictions).items():
            self.assertEqual("FailedPrecondition: chunk_rows: expected the same number on all ranks of the group, got [4, 5] (by rank)", said.pop(0))
            for number, what in ((0, "label_smoothing"), (1, "shard_offset")):
                if isinstance(said[number], str):
                    self.assertIn("FailedPrecondition", said[number])
                    self.assertIn(what, said[number])
                else:  # on a device
                    self.assertNotEqual(said[number], said[number])
            self.assertIn("InvalidArgument: vocab_size: expected the number of real columns over all ranks, got None", said[2])
            self.assertEqual(said[3], said[3])


if __name__ == "__main__":
    unittest.main()
