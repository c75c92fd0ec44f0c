"""What a step divides by: over micro-batches and ranks, however many tokens each has."""

import tempfile
import unittest

import torch
import torch.multiprocessing as multiprocessing
from torch.utils.checkpoint import checkpoint

import lossgauge
import ring
from device import join_group, leave_group

COLUMNS = 11


def batch(step_rows):
    """Micro-batches with very unequal numbers of unmasked labels."""
    torch.manual_seed(8)
    hidden = torch.randn(step_rows, 5)
    labels = torch.randint(0, COLUMNS, (step_rows,))
    labels[1:step_rows // 2] = -100
    return hidden, labels


def whole_gradient(hidden, labels):
    head = torch.ones(COLUMNS, 5, dtype=torch.float64).mul_(0.1).requires_grad_()
    torch.nn.functional.cross_entropy(hidden.double() @ head.t(), labels).backward()
    return head.grad


def head():
    return torch.ones(COLUMNS, 5).mul_(0.1).requires_grad_()


class OneRank(unittest.TestCase):
    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.gauge = lossgauge.Gauge(run="denominator", ring_dir=directory.name, vocab_size=COLUMNS)
        self.addCleanup(self.gauge.close)
        hidden, labels = batch(12)
        self.right = whole_gradient(hidden, labels)
        self.micro = [(hidden[i:i + 4], labels[i:i + 4]) for i in (0, 4, 8)]

    def test_accumulate(self):
        weight = head()
        denominator = self.gauge.accumulate([labels for _, labels in self.micro])
        self.assertEqual(7.0, denominator.item())
        loss = sum(self.backward(weight, hidden, labels) for hidden, labels in self.micro)
        torch.testing.assert_close(weight.grad.double(), self.right, rtol=1e-5, atol=1e-7)
        self.gauge.step()
        (record,) = ring.records(self.gauge)
        self.assertEqual((7.0, 7.0), (record["denominator_min"], record["denominator_max"]))
        self.assertAlmostEqual(record["nll_sum"] / 7, loss, places=5)
        # The next step divides by its own again.
        self.gauge.cross_entropy(torch.randn(2, COLUMNS), torch.tensor([1, 2]))
        self.gauge.step()
        self.assertEqual(2.0, ring.records(self.gauge)[1]["denominator_max"])

    def backward(self, weight, hidden, labels, **options):
        loss = self.gauge.cross_entropy(hidden @ weight.t(), labels, **options)
        loss.backward()
        return loss.item()

    def test_scale_gradients(self):
        weight = head()
        for hidden, labels in self.micro:
            self.backward(weight, hidden, labels, reduction="sum")
        self.gauge.scale_gradients([weight])
        torch.testing.assert_close(weight.grad.double(), self.right, rtol=1e-5, atol=1e-7)
        self.gauge.step()
        self.assertEqual(7.0, ring.records(self.gauge)[0]["denominator_max"])

    def test_a_checkpointed_loss_divides_by_the_step_too(self):
        for reentrant in (True, False):
            weight = head()
            self.gauge.accumulate([labels for _, labels in self.micro])
            for hidden, labels in self.micro:
                checkpoint(lambda w, hidden=hidden, labels=labels: self.gauge.cross_entropy(hidden @ w.t(), labels), weight, use_reentrant=reentrant).backward()
            torch.testing.assert_close(weight.grad.double(), self.right, rtol=1e-5, atol=1e-7)
            self.gauge.step()

    def test_the_mean_of_means_is_something_else(self):
        weight = head()
        for hidden, labels in self.micro:
            (torch.nan_to_num(torch.nn.functional.cross_entropy(hidden @ weight.t(), labels)) / 3).backward()
        self.assertGreater((weight.grad.double() - self.right).abs().max().item(), 0.01)

    def test_a_number_of_tokens_will_do(self):
        self.assertEqual(7.0, self.gauge.accumulate(7).item())

    def test_shift_counts_what_the_shifted_loss_counts(self):
        labels = torch.tensor([[1, 2, -100, 3], [4, 5, 6, 7]])
        self.assertEqual(5.0, self.gauge.accumulate(labels, shift=True).item())
        self.assertEqual(7.0, self.gauge.accumulate(labels).item())

    def test_misuse_is_named(self):
        with self.assertRaisesRegex(lossgauge.FailedPrecondition, "reduction='sum'"):
            self.gauge.scale_gradients([head()])
        with self.assertRaisesRegex(ValueError, "labels"):
            self.gauge.accumulate([])


def _rank(rank, world, directory, results):
    backend = join_group(rank, world, directory)
    hidden, labels = batch(12)
    mine = slice(rank * 6, rank * 6 + 6)  # the first rank has one unmasked label, the second six
    gradients = {}
    for reduction in ("mean", "sum"):
        for way in ("accumulate", "scale"):
            with lossgauge.Gauge(run="ranks-{}-{}".format(reduction, way), ring_dir=directory, gradient_reduction=reduction) as gauge:
                weight = head()
                if way == "accumulate":
                    gauge.accumulate(labels[mine])
                loss = gauge.cross_entropy(hidden[mine] @ weight.t(), labels[mine], reduction="mean" if way == "accumulate" else "sum")
                loss.backward()
                torch.distributed.all_reduce(weight.grad)
                if reduction == "mean":
                    weight.grad /= world
                if way == "scale":
                    gauge.scale_gradients([weight])
                gauge.step()
                record = ring.records(gauge)[0]
                gradients[reduction + way] = (weight.grad.tolist(), record["denominator_max"], ring.dump(gauge.state().steps_path)["header"]["attempt"])
    # The same through torch's own data-parallel module, which averages while the backward pass runs.
    with lossgauge.Gauge(run="ddp", ring_dir=directory, gradient_reduction="mean") as gauge:
        model = torch.nn.Linear(5, COLUMNS, bias=False)
        with torch.no_grad():
            model.weight.fill_(0.1)
        parallel = torch.nn.parallel.DistributedDataParallel(model)
        gauge.accumulate(labels[mine])
        gauge.cross_entropy(parallel(hidden[mine]), labels[mine]).backward()
        gauge.step()
        gradients["ddp"] = (model.weight.grad.tolist(), ring.records(gauge)[0]["denominator_max"], gradients["meanaccumulate"][2])
    if backend == "nccl":
        from torch.distributed.fsdp import fully_shard

        with lossgauge.Gauge(run="fully-shard", ring_dir=directory, gradient_reduction="mean") as gauge:
            model = torch.nn.Linear(5, COLUMNS, bias=False)
            with torch.no_grad():
                model.weight.fill_(0.1)
            fully_shard(model)
            gauge.accumulate(labels[mine])
            gauge.cross_entropy(model(hidden[mine]), labels[mine]).backward()
            norm = torch.nn.utils.get_total_norm([model.weight.grad])
            gauge.step(grad_norm=norm)
            record, whole = ring.records(gauge)[0], model.weight.grad.full_tensor()
            gradients["fully_shard"] = (whole.tolist(), record["denominator_max"], gradients["meanaccumulate"][2])
            torch.testing.assert_close(record["grad_norm"], whole.norm().item(), rtol=1e-5, atol=0)  # of all shards, not of this rank's
    results[rank] = gradients
    try:
        lossgauge.Gauge(run="unknown", ring_dir=directory).accumulate(labels[mine])
    except lossgauge.FailedPrecondition as error:
        results[world + rank] = str(error)
    leave_group()


class TwoRanks(unittest.TestCase):
    def test_averaging_and_summing_frameworks(self):
        context = multiprocessing.get_context("spawn")
        with tempfile.TemporaryDirectory() as directory, context.Manager() as manager:
            results = manager.dict()
            ranks = [context.Process(target=_rank, args=(rank, 2, directory, results)) for rank in range(2)]
            for process in ranks:
                process.start()
            for process in ranks:
                process.join()
                self.assertEqual(0, process.exitcode)
            right = whole_gradient(*batch(12))
            for name, divisor in (("meanaccumulate", 3.5), ("meanscale", 3.5), ("sumaccumulate", 7.0), ("sumscale", 7.0), ("ddp", 3.5), ("fully_shard", 3.5)):
                if name not in results[0]:  # two ranks of NCCL only
                    continue
                for rank in range(2):
                    gradient, said, attempt = results[rank][name]
                    torch.testing.assert_close(torch.tensor(gradient).double(), right, rtol=1e-5, atol=1e-7, msg=name)
                    self.assertEqual(divisor, said, name)
                    self.assertEqual(results[0][name][2], attempt)  # shared by rank 0
            for rank in range(2):
                self.assertIn("gradient_reduction: expected 'mean' or 'sum'", results[2 + rank])


if __name__ == "__main__":
    unittest.main()
