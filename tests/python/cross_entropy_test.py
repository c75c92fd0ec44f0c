"""Loss and gradient through Python against float64: every option, dtype, shape and reduction."""

import itertools
import random
import unittest

import torch

import device  # noqa: F401 (default device)
import lossgauge
import oracle


def run(logits, labels, upstream=None, **options):
    """Loss and gradient of our call."""
    z = logits.clone().requires_grad_()
    loss = lossgauge.cross_entropy(z, labels, **options)
    (loss if upstream is None else loss * upstream).sum().backward()
    return loss.detach(), z.grad


def expected(logits, labels, upstream=None, **options):
    z = logits.detach().double().requires_grad_()
    loss = oracle.reduced(z.reshape(-1, z.shape[-1]), labels.reshape(-1), **options)
    (loss if upstream is None else loss * upstream.reshape(-1).double() if upstream.numel() > 1 else loss * upstream.double()).sum().backward()
    return loss.detach(), z.grad


class CrossEntropy(unittest.TestCase):
    def compare(self, logits, labels, upstream=None, bound=1.0, **options):
        loss, gradient = run(logits, labels, upstream, **options)
        right, right_gradient = expected(logits, labels, upstream, **options)
        self.assertEqual(loss.dtype, torch.float32)
        torch.testing.assert_close(loss.reshape(-1).double(), right.reshape(-1), rtol=2e-6, atol=1e-6)
        self.assertEqual(gradient.dtype, logits.dtype)
        self.assertEqual(gradient.shape, logits.shape)
        excess = (gradient.double() - right_gradient).abs() - bound * oracle.gradient_bound(right_gradient, logits.dtype)
        self.assertLessEqual(excess.max().item() if excess.numel() else 0, 0)

    def test_all_options_against_float64(self):
        torch.manual_seed(1)
        random.seed(1)
        for reduction, dtype, label_dtype in itertools.product(("mean", "sum", "none"), (torch.float32, torch.bfloat16, torch.float16), (torch.int64, torch.int32)):
            for case in range(6):
                shape = random.choice([(3,), (2, 5), (2, 3, 4), (1, 1), ()])
                columns = random.choice([1, 2, 7, 33, 64, 257])
                vocab = random.choice([None, None, max(1, columns - 3)])
                logits = (4 * torch.randn(*shape, columns)).to(dtype)
                labels = torch.randint(0, vocab or columns, shape, dtype=label_dtype)
                labels = torch.where(torch.rand(shape) < 0.3, torch.full_like(labels, -100), labels)
                options = dict(reduction=reduction, label_smoothing=random.choice([0.0, 0.1]), z_loss=random.choice([0.0, 1e-3]), vocab_size=vocab,
                               logit_scale=random.choice([1.0, 0.5]), logit_softcap=random.choice([None, 5.0]))
                if reduction == "mean":
                    options["denominator"] = random.choice([None, 17.0])
                upstream = torch.rand(shape) + 0.5 if reduction == "none" else torch.tensor(random.choice([1.0, 4.0]))
                with self.subTest(reduction=reduction, dtype=dtype, case=case, shape=shape, columns=columns, **{k: v for k, v in options.items() if k != "reduction"}):
                    self.compare(logits, labels, upstream, bound=1.05, **options)

    def test_equals_torch_where_they_overlap(self):
        torch.manual_seed(2)
        logits, labels = torch.randn(6, 5, 19), torch.randint(0, 19, (6, 5))
        labels[0, :3] = 7
        for reduction in ("mean", "sum", "none"):
            for smoothing in (0.0, 0.2):
                ours = lossgauge.cross_entropy(logits, labels, reduction=reduction, label_smoothing=smoothing, ignore_index=7)
                theirs = torch.nn.functional.cross_entropy(logits.view(-1, 19), labels.view(-1), reduction=reduction, label_smoothing=smoothing, ignore_index=7)
                torch.testing.assert_close(ours.reshape(-1), theirs.reshape(-1), rtol=2e-6, atol=2e-6)

    def test_no_unmasked_label_is_loss_0_and_gradient_0(self):
        loss, gradient = run(torch.randn(3, 5), torch.full((3,), -100))
        self.assertEqual(0.0, loss.item())
        self.assertEqual(0.0, gradient.abs().max().item())

    def test_empty_batch(self):
        loss, gradient = run(torch.randn(0, 5), torch.zeros(0, dtype=torch.int64))
        self.assertEqual(0.0, loss.item())
        self.assertEqual((0, 5), tuple(gradient.shape))

    def test_a_label_outside_counts_for_nothing(self):
        logits = torch.randn(2, 5)
        loss, gradient = run(logits, torch.tensor([1, 5]))
        right, _ = expected(logits[:1], torch.tensor([1]))
        self.assertAlmostEqual(right.item(), loss.item(), places=6)
        self.assertEqual(0.0, gradient[1].abs().max().item())

    def test_denominator_on_the_device_equals_the_number(self):
        logits, labels = torch.randn(4, 9), torch.randint(0, 9, (4,))
        for dtype in (torch.int64, torch.float32, torch.float64):
            of_tensor = run(logits, labels, denominator=torch.tensor(13, dtype=dtype))
            of_number = run(logits, labels, denominator=13)
            self.assertTrue(torch.equal(of_tensor[0], of_number[0]) and torch.equal(of_tensor[1], of_number[1]))

    def test_views_that_are_not_contiguous(self):
        torch.manual_seed(3)
        base = torch.randn(6, 10, 14)
        views = {"transposed": base.transpose(0, 1), "columns": base[..., 2:12], "rows": base[::2], "column steps": base[..., ::2], "reversed dims": base.permute(2, 1, 0),
                 "expanded": base[:1].expand(4, 10, 14), "misaligned": torch.randn(1 + 6 * 14)[1:].view(6, 14)}
        for name, logits in views.items():
            with self.subTest(name):
                labels = torch.randint(0, logits.shape[-1], logits.shape[:-1])
                z = logits.detach()
                leaf = z.requires_grad_()
                lossgauge.cross_entropy(leaf, labels).backward()
                right, right_gradient = expected(logits.detach(), labels)
                torch.testing.assert_close(leaf.grad.double(), right_gradient, rtol=2e-6, atol=1e-8)
        strided = torch.randint(0, 14, (12,))[::2]
        loss, _ = run(base[0, :6], strided)
        right, _ = expected(base[0, :6], strided)
        self.assertAlmostEqual(right.item(), loss.item(), places=5)

    def test_shift_scores_the_next_token_once(self):
        torch.manual_seed(4)
        logits, tokens = torch.randn(2, 6, 11), torch.randint(0, 11, (2, 6))
        ours, gradient = run(logits, tokens, shift=True)
        right, right_gradient = expected(logits[:, :-1], tokens[:, 1:])
        self.assertAlmostEqual(right.item(), ours.item(), places=6)
        torch.testing.assert_close(gradient[:, :-1].double(), right_gradient, rtol=2e-6, atol=1e-8)
        self.assertEqual(0.0, gradient[:, -1].abs().max().item())
        # Wrong: shifted twice (labels handed in already shifted), or not at all.
        self.assertNotAlmostEqual(expected(logits[:, :-1], tokens[:, :-1])[0].item(), ours.item(), places=3)
        self.assertNotAlmostEqual(expected(logits[:, :-2], tokens[:, 2:])[0].item(), ours.item(), places=3)

    def test_nonfinite_logits_are_said(self):
        logits = torch.randn(3, 5)
        logits[1, 2] = float("nan")
        self.assertTrue(torch.isnan(run(logits, torch.tensor([0, 1, 2]))[0]))

    def test_bad_input_names_argument_expected_and_got(self):
        logits, labels = torch.randn(4, 9), torch.randint(0, 9, (4,))
        for name, arguments, options in (
            ("logits", (logits.double(), labels), {}),
            ("logits", ([1.0], labels), {}),
            ("logits", (logits.to_sparse(), labels), {}),
            ("labels", (logits, labels[:3]), {}),
            ("labels", (logits, labels.float()), {}),
            ("labels", (logits, labels.bool()), {}),
            ("labels", (logits, labels.tolist()), {}),
            ("labels", (logits, labels.to("meta")), {}),
            ("reduction", (logits, labels), {"reduction": "average"}),
            ("ignore_index", (logits, labels), {"ignore_index": 0.5}),
            ("label_smoothing", (logits, labels), {"label_smoothing": 1.0}),
            ("label_smoothing", (logits, labels), {"label_smoothing": "much"}),
            ("z_loss", (logits, labels), {"z_loss": -1.0}),
            ("logit_softcap", (logits, labels), {"logit_softcap": -5.0}),
            ("denominator", (logits, labels), {"denominator": 0}),
            ("denominator", (logits, labels), {"denominator": float("nan")}),
            ("denominator", (logits, labels), {"denominator": 4, "reduction": "sum"}),
            ("denominator", (logits, labels), {"denominator": torch.ones(2)}),
            ("vocab_size", (logits, labels), {"vocab_size": 10}),
            ("vocab_size", (logits, labels), {"vocab_size": 0}),
            ("columns", (torch.randn(4, 0), labels), {}),
        ):
            with self.subTest(name=name, options=options):
                with self.assertRaises(ValueError) as caught:
                    lossgauge.cross_entropy(*arguments, **options)
                self.assertIsInstance(caught.exception, lossgauge.Error)
                self.assertIn("expected", str(caught.exception))
                self.assertIn("got", str(caught.exception))
                if name != "logit_softcap" and name != "z_loss":
                    self.assertIn(name, str(caught.exception))


if __name__ == "__main__":
    unittest.main()
