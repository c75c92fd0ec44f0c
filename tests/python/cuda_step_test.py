"""Whole steps on a GPU: captured, on side streams, without waiting, without memory of their own."""

import tempfile
import unittest

import torch

import lossgauge
import oracle
import ring
from device import DEVICE, ON_CUDA
from lossgauge.compiling import HAS_OPERATORS

ROWS, COLUMNS, WIDTH = 24, 1000, 32
WAITS = ("Synchronize", "cudaMemcpy", "EventQuery")  # of the runtime's calls; cudaMemcpyAsync is looked at for itself


def right(hidden, weight, labels):
    leaf = weight.detach().double().requires_grad_()
    loss = oracle.reduced(hidden.double() @ leaf.t(), labels)
    loss.backward()
    return loss.detach(), leaf.grad


@unittest.skipUnless(ON_CUDA, "LOSSGAUGE_TEST_DEVICE is not cuda")
class Step(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(11)
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.gauge = lossgauge.Gauge(run="cuda", ring_dir=directory.name, vocab_size=COLUMNS)
        self.addCleanup(self.gauge.close)
        self.hidden, self.labels = torch.randn(ROWS, WIDTH), torch.randint(0, COLUMNS, (ROWS,))
        self.labels[::3] = -100
        self.weight = (torch.randn(COLUMNS, WIDTH) / 4).requires_grad_()
        self.rate = torch.tensor(0.5)

    def loss(self, kind):
        if kind == "linear":
            return self.gauge.linear_cross_entropy(self.hidden, self.weight, self.labels)
        return self.gauge.cross_entropy(self.hidden @ self.weight.t(), self.labels)

    def step(self, kind="logits"):
        self.weight.grad = None
        loss = self.loss(kind)
        loss.backward()
        self.gauge.step(grad_norm=self.weight.grad.norm(), lr=self.rate)
        return loss

    def test_a_captured_step_counts_every_replay(self):
        for kind in ("logits", "linear"):
            with self.subTest(kind=kind):
                first = len(ring.records(self.gauge))
                side = torch.cuda.Stream()
                side.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(side):
                    for _ in range(3):
                        self.step(kind)
                torch.cuda.current_stream().wait_stream(side)
                graph = torch.cuda.CUDAGraph()
                self.weight.grad = None
                with torch.cuda.graph(graph):
                    loss = self.step(kind)
                losses, norms = [], []
                for number in range(4):
                    self.hidden.copy_(torch.randn(ROWS, WIDTH))
                    self.rate.fill_(number)
                    graph.replay()
                    expected, gradient = right(self.hidden, self.weight, self.labels)
                    torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)
                    torch.testing.assert_close(self.weight.grad.double(), gradient, rtol=1e-3, atol=1e-5)
                    losses.append(loss.item())
                    norms.append(self.weight.grad.norm().item())
                replayed = ring.records(self.gauge)[first + 3:]
                self.assertEqual([0.0, 1.0, 2.0, 3.0], [record["learning_rate"] for record in replayed])
                for record, value, norm in zip(replayed, losses, norms):
                    self.assertEqual(str(ROWS), record["tokens"])
                    self.assertAlmostEqual(value, record["nll_sum"] / int(record["finite_tokens"]), places=4)
                    self.assertAlmostEqual(norm, record["grad_norm"], places=4)
                numbers = [int(record["step"]) for record in ring.records(self.gauge)]
                self.assertEqual(list(range(len(numbers))), numbers)
                del graph

    def test_numbers_of_the_host_are_refused_in_a_capture_and_it_goes_on(self):
        self.step()
        graph, refused = torch.cuda.CUDAGraph(), []
        with torch.cuda.graph(graph):
            for call in (lambda: self.gauge.step(lr=1e-3), lambda: self.gauge.observe(3.5, 2)):
                try:
                    call()
                except lossgauge.FailedPrecondition as error:
                    refused.append(str(error))
            self.gauge.step(lr=self.rate)
        self.assertEqual(2, len(refused), refused)
        before = len(ring.records(self.gauge))
        graph.replay()
        self.assertEqual(before + 1, len(ring.records(self.gauge)))

    def test_a_captured_observation_reads_what_is_there_at_each_replay(self):
        self.step()
        total, tokens = torch.tensor(0.0), torch.tensor(0)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.gauge.observe(total, tokens)
            self.gauge.step()
        for count in range(1, 4):
            total.fill_(1.5 * count)
            tokens.fill_(count)
            graph.replay()
        self.assertEqual([("1", 1.5), ("2", 3.0), ("3", 4.5)], [(record["tokens"], record["nll_sum"]) for record in ring.records(self.gauge)[1:]])

    @unittest.skipUnless(HAS_OPERATORS, "torch.library.custom_op needs torch 2.4")
    def test_the_compilers_cuda_graphs_repeat_nothing_that_the_gauge_said_once(self):
        torch.set_default_device(None)
        self.addCleanup(torch.set_default_device, DEVICE)
        logits = (self.hidden @ self.weight.t()).detach()
        compiled = torch.compile(lambda z: self.gauge.cross_entropy(z * 1.0, self.labels), mode="reduce-overhead", fullgraph=True)
        denominators = [7.0, 8.0, 9.0, 10.0, 11.0]
        for denominator in denominators:
            torch.compiler.cudagraph_mark_step_begin()
            self.gauge.accumulate(denominator)
            compiled(logits.clone().requires_grad_()).backward()
            self.gauge.step()
        self.assertEqual(denominators, [record["denominator_max"] for record in ring.records(self.gauge)])

    def test_a_loss_on_a_side_stream(self):
        expected, gradient = right(self.hidden, self.weight, self.labels)
        side = torch.cuda.Stream()
        for number in range(20):
            self.weight.grad = None
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                loss = self.loss("logits")
                loss.backward()
            torch.cuda.current_stream().wait_stream(side)
            self.loss("logits")
            self.gauge.step()
        torch.testing.assert_close(loss.double(), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(self.weight.grad.double(), gradient, rtol=1e-3, atol=1e-5)
        records = ring.records(self.gauge)
        self.assertEqual([str(2 * ROWS)] * 20, [record["tokens"] for record in records])
        self.assertEqual(1, len({record["nll_sum"] for record in records}))

    def test_a_step_never_waits_for_the_device(self):
        self.step()
        logits, total = torch.randn(ROWS, COLUMNS), torch.tensor(21.5)
        torch.cuda.synchronize()

        def whole_step():
            self.gauge.accumulate([self.labels, self.labels])
            for kind in ("logits", "linear"):
                self.loss(kind).backward()
            self.gauge.cross_entropy(self.hidden @ self.weight.t(), self.labels, reduction="sum", denominator=None).backward()
            self.gauge.scale_gradients([self.weight])
            self.gauge.observe_logits(logits, self.labels, block=1)
            self.gauge.observe(loss_sum=total, tokens=(self.labels != -100).sum(), positions=ROWS, grad_norm=total)
            self.gauge.step(grad_norm=self.weight.grad.norm(), lr=self.rate, denominator=self.rate)

        whole_step()
        torch.cuda.set_sync_debug_mode("error")  # torch's own waits
        try:
            whole_step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]) as profile:
            with torch.profiler.record_function("whole step"):
                whole_step()
            torch.cuda.synchronize()
        events = profile.events()
        (span,) = [event.time_range for event in events if event.name == "whole step" and event.device_type == torch.autograd.DeviceType.CPU]
        inside = [event.name for event in events if span.start <= event.time_range.start <= span.end]
        self.assertTrue([name for name in inside if "LaunchKernel" in name], inside)  # the runtime's calls are seen
        self.assertEqual([], [name for name in inside if any(wait in name for wait in WAITS) and name != "cudaMemcpyAsync"])

    def test_no_memory_beyond_the_gradient(self):
        logits, labels = torch.randn(4096, 32000, dtype=torch.bfloat16), torch.randint(0, 32000, (4096,))
        size = logits.numel() * 2
        for inplace, allowed in ((False, size), (True, 0)):
            for _ in range(2):  # the first one may load kernels
                source = logits.clone().requires_grad_()
                z = source.view_as(source)
                torch.cuda.synchronize()
                torch.cuda.reset_peak_memory_stats()
                before, free = torch.cuda.memory_allocated(), torch.cuda.mem_get_info()[0]
                self.gauge.cross_entropy(z, labels, inplace=inplace).backward()
                torch.cuda.synchronize()
                peak, taken = torch.cuda.max_memory_allocated() - before, free - torch.cuda.mem_get_info()[0]
            with self.subTest(inplace=inplace):
                self.assertLess(peak, allowed + (1 << 20))
                self.assertLess(taken, allowed + (64 << 20))  # nothing past torch's allocator either; other processes take some of the device's, too
            del source, z

    def test_misaligned_rows(self):
        for offset in range(1, 8):
            flat = torch.randn(offset + 7 * 1001, dtype=torch.bfloat16)
            z = flat[offset:].view(7, 1001).requires_grad_()
            labels = torch.randint(0, 1001, (7,))
            loss = lossgauge.cross_entropy(z, labels)
            loss.backward()
            expected = z.detach().double().requires_grad_()
            oracle.reduced(expected, labels).backward()
            excess = (z.grad.double() - expected.grad).abs() - 1.05 * oracle.gradient_bound(expected.grad, z.dtype)
            self.assertLessEqual(excess.max().item(), 0)

    def test_tensors_on_another_device_are_named(self):
        logits = self.hidden @ self.weight.t()
        for name, call in (("labels", lambda: lossgauge.cross_entropy(logits, self.labels.cpu())),
                           ("weight", lambda: lossgauge.linear_cross_entropy(self.hidden, self.weight.cpu(), self.labels)),
                           ("labels", lambda: lossgauge.linear_cross_entropy(self.hidden, self.weight, self.labels.cpu()))):
            with self.assertRaisesRegex(ValueError, name + ": expected a tensor on cuda.*got .* on cpu"):
                call()

    def test_a_grad_scaler(self):
        expected, gradient = right(self.hidden, self.weight, self.labels)
        scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**14)
        with torch.autocast(DEVICE, dtype=torch.float16):
            loss = self.gauge.cross_entropy(torch.nn.functional.linear(self.hidden, self.weight), self.labels)
        scaler.scale(loss).backward()
        optimizer = torch.optim.SGD([self.weight], lr=0.0)
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        torch.testing.assert_close(self.weight.grad.double(), gradient, rtol=2e-2, atol=1e-4)
        torch.testing.assert_close(loss.double(), expected, rtol=1e-3, atol=1e-3)

    def test_lengths_of_documents_are_not_read_back(self):
        tokens = torch.arange(5)
        for ends in ([1, 5], [0, 3, 2], [0, 6], [-7, 1 << 40]):
            with self.subTest(ends=ends):
                given, prompts = torch.tensor(ends), torch.full((len(ends) - 1,), -3)
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode("error")
                try:
                    got = lossgauge.pack_labels(tokens, given, prompts)
                finally:
                    torch.cuda.set_sync_debug_mode("default")
                scored = got.labels[got.labels != -100]  # labels of some positions, none of them anything but a token
                self.assertTrue(((scored >= 0) & (scored < 5)).all().item())
                self.assertEqual(5, (got.masked_last + got.masked_padding + got.masked_prompt + got.unmasked).item())


if __name__ == "__main__":
    unittest.main()
