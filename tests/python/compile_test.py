"""torch.compile: the losses are part of the graph, forward and backward, and give what they give in eager mode. Needs torch 2.4."""

import itertools
import tempfile
import unittest

import torch
from torch.utils.checkpoint import checkpoint

import lossgauge
import ring
from device import DEVICE, ON_CUDA
from lossgauge.compiling import HAS_OPERATORS

if ON_CUDA:
    torch.set_default_device(None)  # the tensors here say where they are
ROWS, COLUMNS, WIDTH = 12, 40, 16
BACKENDS = ("aot_eager", "inductor")


def batch(rows=ROWS, dtype=torch.float32, columns=COLUMNS):
    torch.manual_seed(rows)
    logits, labels = torch.randn(rows, columns), torch.randint(0, columns, (rows,))
    labels[1::4] = -100
    return logits.to(DEVICE, dtype), labels.to(DEVICE)


def parts(rows=ROWS, dtype=torch.float32):
    torch.manual_seed(rows)
    made = [torch.randn(rows, WIDTH), torch.randn(COLUMNS, WIDTH) / 4, torch.randn(COLUMNS)]
    return [t.to(DEVICE, dtype).requires_grad_() for t in made]


@unittest.skipUnless(HAS_OPERATORS, "torch.library.custom_op needs torch 2.4")
class Compile(unittest.TestCase):
    def setUp(self):
        torch._dynamo.reset()
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.gauge = lossgauge.Gauge(run="compiled", ring_dir=directory.name, vocab_size=COLUMNS)
        self.addCleanup(self.gauge.close)

    def compare(self, function, leaves, upstream=1.7, tolerance=2e-6, **compile_options):
        """Loss and gradients of function(*leaves), compiled whole, against eager mode."""
        torch._dynamo.reset()  # or the function counts as one that is compiled again and again
        results = []
        for called in (function, torch.compile(function, fullgraph=True, **compile_options)):
            given = [leaf.detach().clone().requires_grad_(leaf.requires_grad) for leaf in leaves]
            loss = called(*given)
            (loss * upstream).sum().backward()
            results.append([loss.detach()] + [leaf.grad for leaf in given])
        for eager, compiled in zip(*results):
            if eager is None:
                self.assertIsNone(compiled)
                continue
            self.assertEqual(eager.dtype, compiled.dtype)
            torch.testing.assert_close(compiled, eager, rtol=tolerance, atol=tolerance * (1 + eager.abs().max().item()))

    def test_loss_on_logits(self):
        for backend, dtype, counted, reduction in itertools.product(BACKENDS, (torch.float32, torch.bfloat16, torch.float16), (False, True), ("mean", "sum", "none")):
            if backend == "inductor" and dtype != torch.bfloat16:  # it takes seconds for each
                continue
            logits, labels = batch(dtype=dtype)
            options = dict(reduction=reduction, label_smoothing=0.1, z_loss=1e-3, logit_softcap=9.0, gauge=self.gauge if counted else None)
            with self.subTest(backend=backend, counted=counted, reduction=reduction, dtype=dtype):
                self.compare(lambda z: lossgauge.cross_entropy(z * 1.5, labels, **options), [logits.requires_grad_()],
                             tolerance=2e-6 if dtype == torch.float32 else 1e-2, backend=backend)

    def test_loss_on_hidden_states(self):
        for backend, dtype, counted, reduction in itertools.product(BACKENDS, (torch.float32, torch.bfloat16), (False, True), ("mean", "none")):
            if backend == "inductor" and dtype != torch.bfloat16:
                continue
            hidden, weight, bias = parts(dtype=dtype)
            _, labels = batch()
            options = dict(reduction=reduction, z_loss=1e-3, chunk_rows=5, gauge=self.gauge if counted else None)
            with self.subTest(backend=backend, counted=counted, reduction=reduction, dtype=dtype):
                self.compare(lambda h, w, b: lossgauge.linear_cross_entropy(torch.tanh(h), w, labels, b, **options), [hidden, weight, bias],
                             tolerance=2e-5 if dtype == torch.float32 else 2e-2, backend=backend)

    def test_frozen_parts(self):
        _, labels = batch()
        for wants in itertools.product((True, False), repeat=3):
            if any(wants):
                leaves = [leaf.detach().requires_grad_(wanted) for leaf, wanted in zip(parts(), wants)]
                with self.subTest(wants=wants):
                    self.compare(lambda h, w, b: lossgauge.linear_cross_entropy(h, w, labels, b), leaves, tolerance=2e-5, backend="aot_eager")

    def test_no_gradient(self):
        logits, labels = batch()
        compiled = torch.compile(lambda z: lossgauge.cross_entropy(z, labels), fullgraph=True, backend="aot_eager")
        with torch.no_grad():
            self.assertTrue(torch.equal(lossgauge.cross_entropy(logits, labels), compiled(logits.requires_grad_())))

    def test_dynamic_shapes_do_not_compile_again(self):
        counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")

        def step(z, labels, h, w):
            return self.gauge.cross_entropy(z * 1.0, labels, shift=True) + lossgauge.linear_cross_entropy(h, w, labels)

        compiled = torch.compile(step, fullgraph=True, backend=counter, dynamic=True)
        compilations = []
        for rows in (12, 20, 37, 41, 64, 97):
            logits, labels = batch(rows)
            hidden, weight, _ = parts(rows)
            logits.requires_grad_()
            compiled(logits, labels, hidden, weight).backward()
            gradient, logits.grad = logits.grad, None
            self.assertTrue(torch.isfinite(hidden.grad).all())
            step(logits, labels, hidden, weight).backward()
            torch.testing.assert_close(gradient, logits.grad, rtol=2e-6, atol=2e-7)
            compilations.append(counter.frame_count)
        self.assertLessEqual(compilations[-1], 2, compilations)
        self.assertEqual(compilations[2], compilations[-1], compilations)

    def test_a_denominator_on_the_device_and_a_scale(self):
        logits, labels = batch()
        denominator, scale = torch.tensor(13.0, device=DEVICE), torch.tensor(4.0, device=DEVICE)
        for given in (denominator, 13, None):
            with self.subTest(given=given):
                self.compare(lambda z: lossgauge.cross_entropy(z, labels, denominator=given, grad_scale=scale), [logits.requires_grad_()], backend="aot_eager")

    def test_autocast(self):
        hidden, weight, bias = parts()
        _, labels = batch()

        def loss(h, w, b):
            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                return lossgauge.linear_cross_entropy(h, w, labels, b)

        self.compare(loss, [hidden, weight, bias], tolerance=2e-2, backend="aot_eager")

    def test_steps_are_counted_with_their_places_and_denominators(self):
        logits, labels = batch()
        for backend in BACKENDS:
            torch._dynamo.reset()
            compiled = torch.compile(lambda z, y: self.gauge.cross_entropy(z * 1.0, y), fullgraph=True, backend=backend, dynamic=True)
            first = len(ring.records(self.gauge))
            for _ in range(3):
                self.gauge.accumulate([labels[:5], labels[5:]])
                for half in (slice(0, 5), slice(5, ROWS)):
                    z = logits[half].clone().requires_grad_()
                    compiled(z, labels[half]).backward()
                self.gauge.step()
            self.gauge.accumulate(labels)
            z = logits.clone().requires_grad_()
            self.gauge.cross_entropy(z, labels).backward()
            self.gauge.step()
            *compiled_steps, eager = ring.records(self.gauge)[first:]
            self.assertEqual(3, len(compiled_steps))
            for record in compiled_steps:
                for name in ("tokens", "unmasked_tokens", "mask_fingerprint", "worst_row_position", "nll_sum", "denominator_max", "denominator_min"):
                    self.assertEqual(eager[name], record[name], name)
                self.assertAlmostEqual(eager["logit_grad_sq_sum"], record["logit_grad_sq_sum"], places=6)
                self.assertAlmostEqual(eager["probability_mass"], record["probability_mass"], places=5)

    def test_a_checkpointed_loss_is_counted_once(self):
        logits, labels = batch()
        z = logits.clone().requires_grad_()
        torch.compile(lambda z: checkpoint(lambda y: self.gauge.cross_entropy(torch.sin(y), labels), z, use_reentrant=False), backend="aot_eager")(z).backward()
        self.gauge.step()
        self.assertEqual(str(ROWS), ring.records(self.gauge)[0]["tokens"])

    def test_a_step_in_the_compiled_function_breaks_the_graph_and_counts(self):
        logits, labels = batch()

        @torch.compile(backend="aot_eager")
        def step(z):
            loss = self.gauge.cross_entropy(z * 1.0, labels)
            self.gauge.step(lr=1e-3)
            return loss * 2

        for _ in range(2):
            z = logits.clone().requires_grad_()
            step(z).backward()
        self.assertEqual([str(ROWS)] * 2, [record["tokens"] for record in ring.records(self.gauge)])

    def test_in_place_breaks_the_graph(self):
        logits, labels = batch()

        def loss(z):
            return lossgauge.cross_entropy(z * 1.5, labels, inplace=True)

        gradients = []
        for called in (loss, torch.compile(loss, backend="aot_eager")):
            z = logits.clone().requires_grad_()
            called(z).backward()
            gradients.append(z.grad)
        torch.testing.assert_close(*gradients, rtol=0, atol=0)
        torch._dynamo.reset()
        with self.assertRaisesRegex(Exception, "inplace"):
            torch.compile(loss, backend="aot_eager", fullgraph=True)(logits.clone().requires_grad_())

    def test_bad_input_is_named(self):
        logits, labels = batch()
        for name, function in (("labels", lambda z: lossgauge.cross_entropy(z, labels[:3])), ("logits", lambda z: lossgauge.cross_entropy(z.double(), labels)),
                               ("vocab_size", lambda z: lossgauge.cross_entropy(z, labels, vocab_size=COLUMNS + 1))):
            with self.subTest(name=name), self.assertRaisesRegex(Exception, name + ": expected"):
                torch.compile(function, backend="aot_eager", fullgraph=True)(logits)

    def test_operators_keep_their_contracts(self):
        from lossgauge import graph_ops

        logits, labels = batch()
        plain = ("", "mean", -100, 0.0, 0.0, 1.0, None, None, None, None, None)
        counted = (self.gauge.graph_name,) + plain[1:]
        torch.library.opcheck(graph_ops._cross_entropy, (logits.clone().requires_grad_(), labels, None, None, True, *plain))
        torch.library.opcheck(graph_ops._counted_cross_entropy, (logits.clone().requires_grad_(), labels, None, None, True, *counted))
        hidden, weight, bias = parts()
        torch.library.opcheck(graph_ops._linear, (hidden, weight, bias, labels, None, None, True, True, True, 0, 0, -1, *plain))


if __name__ == "__main__":
    unittest.main()
