"""Under torch's data-parallel modules on a GPU (NCCL, one rank): the gradients are those of the bare module. Two ranks are denominator_test's."""

import tempfile
import unittest

import torch

import lossgauge
import ring
from device import DEVICE, ON_CUDA

COLUMNS, WIDTH, ROWS = 100, 16, 12


class Model(torch.nn.Module):
    """A loss inside of the module, since a sharded head is whole only there."""

    def __init__(self, gauge, linear):
        super().__init__()
        torch.manual_seed(12)
        self.body, self.head = torch.nn.Linear(WIDTH, WIDTH), torch.nn.Linear(WIDTH, COLUMNS)
        self.gauge, self.linear = gauge, linear

    def forward(self, x, labels):
        hidden = torch.tanh(self.body(x))
        if self.linear:
            return self.gauge.linear_cross_entropy(hidden, self.head.weight, labels, self.head.bias)
        return self.gauge.cross_entropy(self.head(hidden), labels)


def fsdp(model):
    from torch.distributed.fsdp import FullyShardedDataParallel

    return FullyShardedDataParallel(model, use_orig_params=True)


def fully_shard(model):
    from torch.distributed.fsdp import fully_shard as shard

    return shard(model)


@unittest.skipUnless(ON_CUDA, "LOSSGAUGE_TEST_DEVICE is not cuda")
class Parallel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        torch.distributed.init_process_group("nccl", store=torch.distributed.HashStore(), rank=0, world_size=1, device_id=torch.device(DEVICE, 0))
        cls.addClassCleanup(torch.distributed.destroy_process_group)

    def test_gradients_and_records(self):
        x, labels = torch.randn(ROWS, WIDTH), torch.randint(0, COLUMNS, (ROWS,))
        labels[::3] = -100
        wrappers = {"ddp": torch.nn.parallel.DistributedDataParallel, "fsdp": fsdp, "fully_shard": fully_shard}
        for linear in (False, True):
            for name, wrap in wrappers.items():
                with self.subTest(name=name, linear=linear), tempfile.TemporaryDirectory() as directory:
                    with lossgauge.Gauge(run=name, ring_dir=directory, gradient_reduction="mean") as gauge:
                        bare, wrapped = Model(gauge, linear), wrap(Model(gauge, linear))
                        for model in (bare, wrapped):
                            gauge.accumulate(labels)
                            loss = model(x, labels)
                            loss.backward()
                            gauge.step()
                        gradients = []
                        for parameter in wrapped.parameters():
                            gradient = parameter.grad.full_tensor() if hasattr(parameter.grad, "full_tensor") else parameter.grad
                            gradients.append(gradient)
                        for parameter, gradient in zip(bare.parameters(), gradients):
                            torch.testing.assert_close(gradient.reshape(parameter.shape), parameter.grad, rtol=1e-5, atol=1e-7)
                        first, second = ring.records(gauge)
                        for field in ("nll_sum", "tokens", "denominator_max", "mask_fingerprint"):
                            self.assertEqual(first[field], second[field], field)


if __name__ == "__main__":
    unittest.main()
