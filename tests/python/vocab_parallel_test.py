"""Logits whose columns are spread over the ranks of a group: the loss and gradient of the whole, the same bits on every rank. On GPUs with NCCL where each rank
has one, else with gloo, which lets ranks share one."""

import tempfile
import unittest

import torch

import lossgauge
import oracle
import ring
from device import ON_CUDA, run_ranks

ROWS, COLUMNS = 10, 61
# Real columns of each rank; a rank without any has a column of padding, or none at all.
SHARDS = {2: [40, 21], 3: [20, 0, 41]}


def problem(dtype=torch.float32):
    torch.manual_seed(5)
    logits = (torch.randn(2, ROWS // 2, COLUMNS) * 3).to(dtype)
    labels = torch.randint(0, COLUMNS, (2, ROWS // 2))
    labels[0, 1] = -100
    labels[1, 0] = COLUMNS - 1
    return logits, labels


OPTIONS = [
    dict(),
    dict(reduction="sum", z_loss=1e-3),
    dict(reduction="none", label_smoothing=0.1),
    dict(logit_softcap=7.0, logit_scale=0.5, denominator=5.0),
]


def mine(world, rank):
    offset = sum(SHARDS[world][:rank])
    return offset, SHARDS[world][rank]


def _losses(rank, world, directory, results):
    for number, options in enumerate(OPTIONS):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            logits, labels = problem(dtype)
            offset, width = mine(world, rank)
            own = logits[..., offset:offset + width].clone().requires_grad_()
            loss = lossgauge.vocab_parallel_cross_entropy(own, labels, vocab_size=COLUMNS, shard_offset=offset, **options)
            weights = torch.linspace(-1, 2, ROWS).view(2, -1) if options.get("reduction") == "none" else torch.tensor(-2.5)
            (loss * weights).sum().backward(retain_graph=True)
            first = own.grad.clone()
            own.grad = None
            (loss * weights).sum().backward()
            second, own.grad = own.grad, None
            inplace_loss, seen = _in_place(own, labels, offset, weights, options)
            same = torch.equal(inplace_loss, loss) and torch.equal(own.grad, first) and seen
            results[number, dtype, rank] = tuple(tensor.detach().cpu() for tensor in (loss, first, second)) + (same,)


def _in_place(own, labels, offset, weights, options):
    """The loss, and whether the gradient came in the memory of the logits, which are gone, and came once. A rank without columns has neither."""
    logits = own * 1.0
    memory, places = logits.data_ptr(), []
    logits.register_hook(lambda gradient: places.append(gradient.data_ptr()))
    loss = lossgauge.vocab_parallel_cross_entropy(logits, labels, vocab_size=COLUMNS, shard_offset=offset, inplace=True, **options)
    (loss * weights).sum().backward(retain_graph=True)
    if own.shape[-1] == 0:
        return loss, places == [memory]
    try:
        (loss * weights).sum().backward()
    except lossgauge.FailedPrecondition as error:
        return loss, places == [memory] and logits.numel() == 0 and "inplace=True" in str(error)
    return loss, False


def _leaf_in_place(rank, world, directory, results):
    logits, labels = problem()
    own = logits[..., :COLUMNS // 2].clone().requires_grad_()
    try:
        lossgauge.vocab_parallel_cross_entropy(own, labels, vocab_size=COLUMNS, inplace=True)
    except lossgauge.InvalidArgument as error:
        results[rank] = str(error)


def _records(rank, world, directory, results):
    logits, labels = problem()
    offset, width = mine(world, rank)
    with tempfile.TemporaryDirectory() as directory, lossgauge.Gauge(
            run="shards", attempt="1", ring_dir=directory, tp=(world, rank), vocab_size=COLUMNS, shard_offset=offset, shard_columns=width) as gauge:
        for _ in range(2):
            own = logits[..., offset:offset + width].clone().requires_grad_()
            gauge.vocab_parallel_cross_entropy(own, labels, shard_offset=offset).backward()
        gauge.step()
        results[rank] = ring.records(gauge)[0] if ring.CTL else None


def _padded(rank, world, directory, results):
    # Megatron's layout: as many columns on every rank, the last ones padding.
    logits, labels = problem()
    width = COLUMNS // world + 7
    own = torch.full((2, ROWS // 2, width), float("nan"))
    real = logits[..., rank * width:(rank + 1) * width]
    own[..., :real.shape[-1]] = real
    own.requires_grad_()
    loss = lossgauge.vocab_parallel_cross_entropy(own, labels, vocab_size=COLUMNS)
    loss.backward()
    results[rank] = (loss.detach().cpu(), own.grad.cpu())


def _contradictions(rank, world, directory, results):
    said = []

    def call(labels=None, rows=2, **options):
        logits, right_labels = (whole[:rows] for whole in problem())
        offset, width = mine(world, rank)
        offset = options.pop("offset", offset)
        try:
            own = logits[..., offset:offset + width]
            options = dict(dict(vocab_size=COLUMNS), **options)
            said.append(lossgauge.vocab_parallel_cross_entropy(own, right_labels if labels is None else labels, shard_offset=offset, **options).item())
        except lossgauge.Error as error:
            said.append("{}: {}".format(type(error).__name__, error))

    call(label_smoothing=0.1 * rank)
    call(offset=0)
    call(vocab_size=None)
    other = problem()[1]
    if rank == 1:
        other[0, 0] += 1
    call(labels=other)
    if not ON_CUDA:
        call(rows=2 - rank % 2)
    call(vocab_size=COLUMNS)
    results[rank] = said


def _unequal(rank, world, directory, results):
    offset, width = mine(world, rank)
    said = []
    for rows in (2 - rank % 2, 2):
        logits, labels = (whole[:rows] for whole in problem())
        try:
            said.append(lossgauge.vocab_parallel_cross_entropy(logits[..., offset:offset + width], labels, vocab_size=COLUMNS, shard_offset=offset).item())
        except lossgauge.Error as error:
            said.append("{}: {}".format(type(error).__name__, error))
    results[rank] = said


def _of_nccl(rank, world, directory, results):
    logits, labels = problem()
    with tempfile.TemporaryDirectory() as directory, lossgauge.Gauge(run="shard", ring_dir=directory, vocab_size=COLUMNS) as gauge:

        def step(leaf):
            loss = gauge.vocab_parallel_cross_entropy(leaf, labels, z_loss=1e-3)
            loss.backward()
            gauge.step()
            return loss.detach()

        def result(loss, leaf):
            return loss.cpu(), leaf.grad.cpu()

        leaf = logits.clone().requires_grad_()
        results["plain"] = result(step(leaf), leaf)
        leaf.grad = None
        torch.cuda.synchronize()
        torch.cuda.set_sync_debug_mode("error")
        try:
            loss = step(leaf)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        results["without waiting"] = result(loss, leaf)
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            leaf.grad = None
            step(leaf)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        leaf.grad = None
        with torch.cuda.graph(graph, stream=side):
            loss = step(leaf)
        for _ in range(2):
            graph.replay()
        results["replayed"] = result(loss, leaf)
        torch.cuda.synchronize()
        results["records"] = [record["unmasked_tokens"] for record in ring.records(gauge)] if ring.CTL else None
        del graph


class VocabParallel(unittest.TestCase):
    def test_losses_and_gradients_are_those_of_the_whole(self):
        for world in SHARDS:
            results = run_ranks(self, world, _losses)
            for number, options in enumerate(OPTIONS):
                for dtype in (torch.float32, torch.bfloat16, torch.float16):
                    with self.subTest(world=world, options=options, dtype=dtype):
                        logits, labels = (tensor.cpu() for tensor in problem(dtype))
                        whole = logits.double().view(ROWS, COLUMNS).requires_grad_()
                        expected = oracle.reduced(whole, labels.view(-1), **options)
                        weights = torch.linspace(-1, 2, ROWS, device="cpu") if options.get("reduction") == "none" else torch.tensor(-2.5, device="cpu")
                        (expected * weights).sum().backward()
                        parts = [results[number, dtype, rank] for rank in range(world)]
                        for loss, first, second, in_place in parts:
                            self.assertTrue(in_place, "in place")
                            self.assertTrue(torch.equal(loss, parts[0][0]), "other bits on another rank")
                            torch.testing.assert_close(loss.double().view(-1), expected.detach().view(-1), rtol=2e-6, atol=1e-7)
                            torch.testing.assert_close(first.double(), second.double(), rtol=2e-2, atol=1e-6)
                        gradient = torch.cat([part[1] for part in parts], dim=-1).view(ROWS, COLUMNS)
                        self.assertEqual(dtype, gradient.dtype)
                        bound = oracle.gradient_bound(whole.grad, dtype)
                        # Rounded, scaled by a factor that came later, and rounded again: the first half of a unit may be a whole one of the second's.
                        self.assertTrue(bool(((gradient.double() - whole.grad).abs() <= 3 * bound).all()))

    def test_a_leaf_keeps_its_memory(self):
        for said in run_ranks(self, 2, _leaf_in_place).values():
            self.assertIn("logits: expected the result of a computation for inplace=True", said)

    def test_equal_widths_with_padding_need_no_offsets(self):
        for world in SHARDS:
            results = run_ranks(self, world, _padded)
            logits, labels = (tensor.cpu() for tensor in problem())
            whole = logits.double().view(ROWS, COLUMNS).requires_grad_()
            expected = oracle.reduced(whole, labels.view(-1))
            expected.backward()
            gradient = torch.cat([results[rank][1] for rank in range(world)], dim=-1).view(ROWS, -1)
            torch.testing.assert_close(results[world - 1][0].double(), expected.detach(), rtol=2e-6, atol=0)
            torch.testing.assert_close(gradient[:, :COLUMNS].double(), whole.grad, rtol=1e-5, atol=1e-7)
            self.assertEqual(0, int(gradient[:, COLUMNS:].count_nonzero()))

    def test_records_of_the_ranks_make_a_whole(self):
        results = run_ranks(self, 2, _records)
        if results[0] is None:
            self.skipTest("LOSSGAUGE_CTL names no lossgaugectl")
        for field in ("nll_sum", "unmasked_tokens", "mask_fingerprint", "log_z_sum"):
            self.assertEqual(results[0][field], results[1][field], field)
        self.assertEqual(18, int(results[0]["unmasked_tokens"]))
        self.assertEqual(18, int(results[0]["target_hits"]) + int(results[1]["target_hits"]))
        self.assertAlmostEqual(18, results[0]["probability_mass"] + results[1]["probability_mass"], places=4)
        self.assertEqual(0, int(results[0]["exchange_bad_rows"]))

    @unittest.skipUnless(ON_CUDA, "LOSSGAUGE_TEST_DEVICE is not cuda")
    def test_with_nccl_nothing_waits_and_a_graph_holds_it(self):
        results = run_ranks(self, 1, _of_nccl)
        logits, labels = (tensor.cpu() for tensor in problem())
        whole = logits.double().view(ROWS, COLUMNS).requires_grad_()
        expected = oracle.reduced(whole, labels.view(-1), z_loss=1e-3)
        expected.backward()
        for name in ("plain", "without waiting", "replayed"):
            loss, gradient = results[name]
            self.assertTrue(torch.equal(loss, results["plain"][0]) and torch.equal(gradient, results["plain"][1]), name)
        torch.testing.assert_close(loss.double(), expected.detach(), rtol=2e-6, atol=0)
        self.assertTrue(bool(((gradient.double().view(ROWS, -1) - whole.grad).abs() <= oracle.gradient_bound(whole.grad, torch.float32)).all()))
        if results["records"] is not None:
            self.assertEqual(["9"] * 5, results["records"])

    @unittest.skipUnless(ON_CUDA, "LOSSGAUGE_TEST_DEVICE is not cuda")
    def test_ranks_that_contradict_each_other_on_a_device_get_no_loss(self):
        for world in SHARDS:
            for rank, said in run_ranks(self, world, _contradictions).items():
                with self.subTest(world=world, rank=rank):
                    for number, what in ((0, "label_smoothing"), (1, "shard_offset"), (3, "labels")):
                        self.assertNotEqual(said[number], said[number], what)
                    self.assertIn("InvalidArgument: vocab_size: expected the number of real columns over all ranks, got None", said[2])
                    self.assertEqual(said[4], said[4])

    @unittest.skipIf(ON_CUDA, "on a device nobody reads what the others sent")
    def test_ranks_that_contradict_each_other_are_refused_on_all(self):
        for world in SHARDS:
            for rank, said in run_ranks(self, world, _contradictions).items():
                with self.subTest(world=world, rank=rank):
                    self.assertIn("FailedPrecondition: lg_vocab_parallel_finish: label_smoothing: expected the same on all ranks", said[0])
                    self.assertIn("FailedPrecondition: lg_vocab_parallel_finish: shard_offset: expected the ranks' columns to cover", said[1])
                    self.assertIn("InvalidArgument: vocab_size: expected the number of real columns over all ranks, got None", said[2])
                    self.assertNotEqual(said[3], said[3], "other labels on one rank: NaN")
                    self.assertIn("FailedPrecondition: labels: expected as many tokens on all ranks of the group, got [10, 5", said[4])
                    self.assertEqual(said[5], said[5])

    def test_unequal_numbers_of_tokens_are_refused_in_the_first_call(self):
        for said in run_ranks(self, 2, _unequal).values():
            self.assertEqual("FailedPrecondition: labels: expected as many tokens on all ranks of the group, got [10, 5] (by rank)", said[0])
            self.assertEqual(said[1], said[1])
            self.assertIsInstance(said[1], float)

    def test_without_a_process_group_it_says_so(self):
        logits, labels = problem()
        with self.assertRaisesRegex(lossgauge.FailedPrecondition, "process_group: expected torch.distributed to be initialised"):
            lossgauge.vocab_parallel_cross_entropy(logits, labels, vocab_size=COLUMNS)


if __name__ == "__main__":
    unittest.main()
