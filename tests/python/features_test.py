"""What other versions of torch lack: the package imported where a feature is not there does the same. (Where the installed torch is old, that is the plain run.)"""

import concurrent.futures
import contextlib
import importlib
import multiprocessing
import sys
import tempfile
import unittest

import torch
from torch.utils.checkpoint import checkpoint

import ring
from device import DEVICE, ON_CUDA

_MISSING = object()
# Path of the attribute, and the first version of torch that has it.
FEATURES = [
    ("_C._current_graph_task_id", "2.1"),
    ("autograd.graph.increment_version", "2.1"),
    ("_C._dynamo.eval_frame.get_eval_frame_callback", "2.2"),
    ("library.custom_op", "2.4"),
    ("get_autocast_dtype", "2.4"),
    ("_C._cuda_getCurrentRawStream", "1.13, but in some builds only"),
]


def owner_of(path):
    *modules, name = path.split(".")
    owner = torch
    for module in modules:
        owner = getattr(owner, module, None)
    return owner, name


@contextlib.contextmanager
def package_without(paths):
    """The package, imported anew while torch has none of these. torch has them again afterwards: it uses some itself."""
    kept_modules = {name: module for name, module in sys.modules.items() if name.split(".")[0] == "lossgauge"}
    kept = [(owner, name, getattr(owner, name, _MISSING)) for owner, name in map(owner_of, paths) if owner is not None]
    for name in kept_modules:
        del sys.modules[name]
    for owner, name, value in kept:
        if value is not _MISSING:
            delattr(owner, name)
    try:
        package = importlib.import_module("lossgauge")
        for module in ("compiling", "graph_breaks", "gauge", "loss_on_logits", "loss_on_hidden", "recomputation"):
            if module != "graph_breaks" or hasattr(torch, "compile"):
                importlib.import_module("lossgauge." + module)
    finally:
        for owner, name, value in kept:
            if value is not _MISSING:
                setattr(owner, name, value)
    try:
        yield package
    finally:
        for name in [name for name in sys.modules if name.split(".")[0] == "lossgauge"]:
            del sys.modules[name]
        sys.modules.update(kept_modules)


def check_without(missing, compiles):
    if compiles:
        torch.compile(torch.sin, backend="eager")(torch.ones(1))  # what torch imports for it, while torch has all of it
    case = Features()
    case.setUp()
    with package_without(missing) as lossgauge:
        case.check(lossgauge, compiles)


class Features(unittest.TestCase):
    def setUp(self):
        torch.manual_seed(6)
        self.hidden, self.weight = torch.randn(6, 8), torch.randn(20, 8)
        self.labels = torch.randint(0, 20, (6,))
        self.labels[2] = -100

    def check(self, lossgauge, compiles):
        with tempfile.TemporaryDirectory() as directory, lossgauge.Gauge(run="old", ring_dir=directory) as gauge:
            leaf = self.weight.clone().requires_grad_()
            expected = torch.nn.functional.cross_entropy(self.hidden @ leaf.t(), self.labels)
            (gradient,) = torch.autograd.grad(expected, leaf)

            def of_logits(weight):
                return gauge.cross_entropy(self.hidden @ weight.t(), self.labels)

            def of_hidden(weight):
                return gauge.linear_cross_entropy(self.hidden, weight, self.labels)

            def in_place(weight):
                return gauge.cross_entropy(self.hidden @ weight.t(), self.labels, inplace=True)

            def checkpointed(weight):
                return checkpoint(of_logits, weight, use_reentrant=False)

            def checkpointed_again(weight):
                return checkpoint(of_logits, weight, use_reentrant=True)

            functions = [of_logits, of_hidden, in_place, checkpointed, checkpointed_again]
            if compiles:
                functions.append(torch.compile(of_logits, backend="eager"))
            for function in functions:
                leaf.grad = None
                loss = function(leaf)
                loss.backward()
                torch.testing.assert_close(loss, expected, rtol=1e-5, atol=1e-6)
                torch.testing.assert_close(leaf.grad, gradient, rtol=1e-4, atol=1e-6)
            gauge.step()
            if ring.CTL:
                self.assertEqual(str(len(functions) * 6), ring.records(gauge)[0]["tokens"], "a forward pass for the second time was counted")

            logits = torch.tanh(self.hidden @ leaf.t())  # saves its result
            loss = gauge.cross_entropy(logits, self.labels, inplace=True)
            self.assertEqual(0, logits.numel())
            with self.assertRaisesRegex(RuntimeError, "modified by an inplace operation|version"):
                loss.backward()

            with torch.autocast(DEVICE, dtype=torch.bfloat16):
                half = lossgauge.linear_cross_entropy(self.hidden, self.weight, self.labels)
            whole = lossgauge.linear_cross_entropy(self.hidden.bfloat16(), self.weight.bfloat16(), self.labels)
            self.assertTrue(torch.equal(half, whole), "autocast was not seen")

    def test_without_each_and_without_all(self):
        every = [path for path, _ in FEATURES]
        for missing in [[]] + [[path] for path in every] + [every]:
            # The operators of the whole package are registered once in a process.
            compiles = hasattr(torch, "compile") and "library.custom_op" in missing
            with self.subTest(missing=missing):
                if not compiles:
                    check_without(missing, False)
                    continue
                # The compiler keeps what it met of an import of the package beyond its own reset().
                with concurrent.futures.ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
                    process.submit(check_without, missing, True).result()

    @unittest.skipUnless(ON_CUDA, "LOSSGAUGE_TEST_DEVICE is not cuda")
    def test_the_installed_torch_has_them(self):
        for path, since in FEATURES:
            owner, name = owner_of(path)
            self.assertTrue(owner is not None and hasattr(owner, name), "{}, since torch {}".format(path, since))


if __name__ == "__main__":
    unittest.main()
