"""Linear cross-entropy through Python: equal to the loss on materialised logits."""

import itertools
import unittest

import torch

import lossgauge
import oracle
from device import DEVICE


def parts(dtype=torch.float32, rows=(3, 7), width=12, columns=37, bias=True):
    torch.manual_seed(6)
    hidden, weight = torch.randn(*rows, width).to(dtype), torch.randn(columns, width).to(dtype)
    labels = torch.randint(0, columns, rows)
    labels.view(-1)[::4] = -100
    return hidden, weight, torch.randn(columns).to(dtype) if bias else None, labels


def expected(hidden, weight, bias, labels, upstream=1.0, **options):
    leaves = [None if t is None else t.detach().double().requires_grad_() for t in (hidden, weight, bias)]
    logits = torch.nn.functional.linear(leaves[0].reshape(-1, hidden.shape[-1]), leaves[1], leaves[2])
    loss = oracle.reduced(logits, labels.reshape(-1), **options)
    (loss * upstream).sum().backward()
    return loss.detach(), [None if t is None else t.grad for t in leaves]


class LinearCrossEntropy(unittest.TestCase):
    def compare(self, given, labels, upstream=1.0, tolerance=2e-5, **options):
        leaves = [None if t is None else t.clone().requires_grad_() for t in given]
        chunk = options.pop("chunk_rows", 0)
        loss = lossgauge.linear_cross_entropy(leaves[0], leaves[1], labels, leaves[2], chunk_rows=chunk, **options)
        (loss * (upstream if not isinstance(upstream, torch.Tensor) else upstream.view(loss.shape))).sum().backward()
        right, gradients = expected(*given, labels, upstream if not isinstance(upstream, torch.Tensor) else upstream.reshape(-1).double(), **options)
        torch.testing.assert_close(loss.detach().reshape(-1).double(), right.reshape(-1), rtol=tolerance, atol=tolerance)
        for leaf, gradient in zip(leaves, gradients):
            if leaf is not None:
                self.assertEqual(leaf.dtype, leaf.grad.dtype)
                torch.testing.assert_close(leaf.grad.double(), gradient, rtol=10 * tolerance, atol=tolerance * gradient.abs().max().item())

    def test_options_against_float64(self):
        for reduction, bias, chunk in itertools.product(("mean", "sum", "none"), (True, False), (0, 1, 5)):
            hidden, weight, b, labels = parts(bias=bias)
            upstream = torch.rand(labels.shape) + 0.5 if reduction == "none" else 1.7
            with self.subTest(reduction=reduction, bias=bias, chunk=chunk):
                self.compare((hidden, weight, b), labels, upstream, reduction=reduction, chunk_rows=chunk, z_loss=1e-3, label_smoothing=0.1, logit_softcap=8.0)

    def test_bf16_and_fp16(self):
        for dtype in (torch.bfloat16, torch.float16):
            hidden, weight, bias, labels = parts(dtype)
            with self.subTest(dtype=dtype):
                self.compare((hidden, weight, bias), labels, tolerance=1e-2)
                self.compare((hidden, weight, bias), labels, upstream=4.0, tolerance=1e-2)

    def test_second_backward_pass_and_frozen_parts(self):
        hidden, weight, bias, labels = parts()
        for wants in itertools.product((True, False), repeat=3):
            leaves = [t.clone().requires_grad_(w) for t, w in zip((hidden, weight, bias), wants)]
            loss = lossgauge.linear_cross_entropy(leaves[0], leaves[1], labels, leaves[2])
            self.assertEqual(any(wants), loss.requires_grad)
            if not any(wants):
                continue
            loss.backward(retain_graph=True)
            loss.backward()
            _, gradients = expected(hidden, weight, bias, labels, 2.0)
            for leaf, wanted, gradient in zip(leaves, wants, gradients):
                if wanted:
                    torch.testing.assert_close(leaf.grad.double(), gradient, rtol=2e-4, atol=1e-6)
                else:
                    self.assertIsNone(leaf.grad)

    def test_shift_and_vocab_size(self):
        hidden, weight, _, labels = parts(bias=False)
        loss = lossgauge.linear_cross_entropy(hidden, weight, labels.clamp(max=29), shift=True, vocab_size=30)
        right, _ = expected(hidden[:, :-1], weight[:30], None, labels.clamp(max=29)[:, 1:])
        self.assertAlmostEqual(right.item(), loss.item(), places=5)

    def test_autocast_takes_its_dtype(self):
        hidden, weight, bias, labels = parts()
        hidden.requires_grad_()
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            loss = lossgauge.linear_cross_entropy(hidden, weight, labels, bias)
        loss.backward()
        self.assertEqual(torch.float32, hidden.grad.dtype)
        right, _ = expected(hidden.bfloat16(), weight.bfloat16(), bias.bfloat16(), labels)
        self.assertAlmostEqual(right.item(), loss.item(), places=1)

    def test_bad_input_names_argument_expected_and_got(self):
        hidden, weight, bias, labels = parts()
        for name, arguments, options in (
            ("weight", (hidden, weight[:, :5], labels, bias), {}),
            ("weight", (hidden, weight.bfloat16(), labels, bias), {}),
            ("weight", (hidden, weight[0], labels, bias), {}),
            ("bias", (hidden, weight, labels, bias[:3]), {}),
            ("bias", (hidden, weight, labels, bias.half()), {}),
            ("labels", (hidden, weight, labels[:1], bias), {}),
            ("memory_budget", (hidden, weight, labels, bias), {"memory_budget": 1}),
            ("vocab_size", (hidden, weight, labels, bias), {"vocab_size": 99}),
        ):
            with self.subTest(name=name, options=options):
                with self.assertRaises(ValueError) as caught:
                    lossgauge.linear_cross_entropy(*arguments, **options)
                self.assertIn(name, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
