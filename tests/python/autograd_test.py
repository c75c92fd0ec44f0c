"""What autograd may do with the loss: any upstream gradient, twice, in place, frozen, checkpointed, under autocast."""

import unittest

import torch
from torch.utils.checkpoint import checkpoint

import lossgauge
import oracle
from device import DEVICE


def right_gradient(logits, labels, factor=1.0, reduction="mean"):
    z = logits.detach().double().requires_grad_()
    (oracle.reduced(z, labels, reduction) * factor).sum().backward()
    return z.grad


class Autograd(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(5)
        self.logits, self.labels = torch.randn(6, 17), torch.randint(0, 17, (6,))
        self.labels[2] = -100

    def close(self, gradient, right):
        torch.testing.assert_close(gradient.double(), right, rtol=3e-6, atol=1e-8)

    def test_upstream_gradients_of_every_kind(self):
        for factor in (1.0, 2.0, 1 / 3, 0.0, -1.5):
            z = self.logits.clone().requires_grad_()
            (lossgauge.cross_entropy(z, self.labels) * factor).backward()
            self.close(z.grad, right_gradient(self.logits, self.labels, factor))
        each = torch.rand(6) - 0.5
        for name, upstream in {"per token": each, "expanded": torch.full((), 0.7).expand(6), "strided": torch.rand(12)[::2], "double": each.double()}.items():
            with self.subTest(name):
                z = self.logits.clone().requires_grad_()
                torch.autograd.backward(lossgauge.cross_entropy(z, self.labels, reduction="none"), upstream.to(torch.float32))
                self.close(z.grad, right_gradient(self.logits, self.labels, upstream.double(), "none"))

    def test_logits_in_two_losses_get_both_gradients(self):
        z = self.logits.clone().requires_grad_()
        y = z * 1.0
        (lossgauge.cross_entropy(y, self.labels) + 0.5 * lossgauge.cross_entropy(y, self.labels, reduction="sum") + y.sum()).backward()
        right = right_gradient(self.logits, self.labels) + 0.5 * right_gradient(self.logits, self.labels, reduction="sum") + 1
        self.close(z.grad, right)

    def test_a_second_backward_pass_gives_the_same(self):
        for reduction in ("mean", "sum", "none"):
            z = self.logits.clone().requires_grad_()
            loss = lossgauge.cross_entropy(z, self.labels, reduction=reduction).sum()
            (3 * loss).backward(retain_graph=True)
            first = z.grad.clone()
            z.grad = None
            (3 * loss).backward()
            self.close(first, right_gradient(self.logits, self.labels, 3.0, reduction))
            self.close(z.grad, right_gradient(self.logits, self.labels, 3.0, reduction))

    def test_gradients_handed_out_are_not_shared(self):
        # autograd may add to the gradient that it was given: what is accumulated must not show in a later pass.
        z = self.logits.clone().requires_grad_()
        loss = lossgauge.cross_entropy(z, self.labels)
        loss.backward(retain_graph=True)
        loss.backward()
        self.close(z.grad, 2 * right_gradient(self.logits, self.labels))

    def test_logits_changed_between_two_passes_are_an_error(self):
        z = self.logits.clone().requires_grad_()
        y = z * 1.0
        loss = lossgauge.cross_entropy(y, self.labels)
        loss.backward(retain_graph=True)
        with torch.no_grad():
            y.add_(1)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()

    def test_a_freed_graph_is_an_error(self):
        z = self.logits.clone().requires_grad_()
        loss = lossgauge.cross_entropy(z, self.labels)
        loss.backward()
        with self.assertRaises(RuntimeError):
            loss.backward()

    def test_second_derivatives_are_an_error(self):
        z = self.logits.clone().requires_grad_()
        (gradient,) = torch.autograd.grad(lossgauge.cross_entropy(z, self.labels), z, create_graph=True)
        with self.assertRaises(RuntimeError):
            gradient.sum().backward()

    def test_no_gradient_is_computed_where_none_is_wanted(self):
        z = self.logits.clone().requires_grad_()
        with torch.no_grad():
            self.assertFalse(lossgauge.cross_entropy(z, self.labels).requires_grad)
        self.assertFalse(lossgauge.cross_entropy(self.logits, self.labels).requires_grad)
        with torch.inference_mode():
            lossgauge.cross_entropy(self.logits, self.labels)

    def test_in_place_gives_the_same_and_leaves_no_logits_to_misread(self):
        for dtype in (torch.float32, torch.bfloat16, torch.float16):
            for reduction in ("mean", "none"):
                with self.subTest(dtype=dtype, reduction=reduction):
                    gradients = []
                    for inplace in (False, True):
                        z = self.logits.to(dtype).clone().requires_grad_()
                        y = z * 1.0
                        memory = y.data_ptr()
                        loss = lossgauge.cross_entropy(y, self.labels, reduction=reduction, inplace=inplace).sum()
                        if inplace:
                            self.assertEqual(0, y.numel())
                            with self.assertRaises((IndexError, RuntimeError)):
                                y.argmax(-1)
                        else:
                            self.assertEqual(memory, y.data_ptr())
                            self.assertTrue(torch.equal(y.detach(), self.logits.to(dtype)))
                        loss.backward()
                        gradients.append(z.grad)
                    self.assertTrue(torch.equal(*gradients))

    def test_in_place_takes_no_memory_of_the_logits_size(self):
        z = self.logits.clone().requires_grad_()
        y = z * 1.0
        memory = y.data_ptr()
        seen = []
        y.register_hook(lambda gradient: seen.append(gradient.data_ptr()))
        lossgauge.cross_entropy(y, self.labels, inplace=True).backward()
        self.assertEqual([memory], seen)

    def test_misuse_after_an_in_place_call_is_an_error(self):
        z = self.logits.clone().requires_grad_()
        y = torch.tanh(z)  # its backward pass reads its own result
        loss = lossgauge.cross_entropy(y, self.labels, inplace=True)
        with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation"):
            loss.backward()
        y = z * 1.0
        loss = lossgauge.cross_entropy(y, self.labels, inplace=True)
        loss.backward(retain_graph=True)
        with self.assertRaisesRegex(lossgauge.FailedPrecondition, "inplace=True"):
            loss.backward()
        with self.assertRaisesRegex(ValueError, "logits"):
            lossgauge.cross_entropy(z, self.labels, inplace=True)  # a leaf
        with self.assertRaisesRegex(ValueError, "logits"):
            lossgauge.cross_entropy((z * 1.0).t()[:, :6], torch.zeros(17, dtype=torch.int64), inplace=True)

    def test_in_place_without_a_gradient_leaves_the_logits(self):
        with torch.no_grad():
            lossgauge.cross_entropy(self.logits, self.labels, inplace=True)
        self.assertEqual((6, 17), tuple(self.logits.shape))

    def test_a_gradient_in_fp16_does_not_vanish_before_the_loss_scale(self):
        logits, labels = torch.zeros(4, 1000).half(), torch.randint(0, 1000, (4,))
        z = logits.clone().requires_grad_()
        (lossgauge.cross_entropy(z, labels, denominator=65536.0) * 65536.0).backward()
        right = right_gradient(logits, labels) * 4  # p = 1e-3, which divided by 65536 would be 0 in fp16
        self.assertGreater(z.grad.abs().min().item(), 0)
        torch.testing.assert_close(z.grad.double(), right, rtol=1e-3, atol=0)

    def test_autocast(self):
        hidden, head = torch.randn(6, 8), torch.randn(17, 8, requires_grad=True)
        with torch.autocast(DEVICE, dtype=torch.bfloat16):
            logits = torch.nn.functional.linear(hidden, head)
            self.assertEqual(torch.bfloat16, logits.dtype)
            loss = lossgauge.cross_entropy(logits, self.labels)
        self.assertEqual(torch.float32, loss.dtype)
        loss.backward()
        self.assertEqual(torch.float32, head.grad.dtype)

    def test_a_checkpointed_loss_is_counted_once(self):
        import tempfile

        with tempfile.TemporaryDirectory() as directory:
            gauge = lossgauge.Gauge(run="checkpointed", ring_dir=directory)
            counted = []
            call = gauge._handle_for
            gauge._handle_for = lambda device: counted.append(device) or call(device)
            for reentrant in (True, False):
                z = self.logits.clone().requires_grad_()
                loss = checkpoint(lambda y: gauge.cross_entropy(y * 1.0, self.labels), z, use_reentrant=reentrant)
                self.assertEqual(1, len(counted))
                loss.backward()
                self.assertEqual(1, len(counted))
                self.close(z.grad, right_gradient(self.logits, self.labels))
                counted.clear()
            gauge.close()


if __name__ == "__main__":
    unittest.main()
