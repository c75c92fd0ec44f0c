"""Where the tests make their tensors: LOSSGAUGE_TEST_DEVICE, "cpu" (default) or "cuda", which needs torch 2."""

import os

import torch

DEVICE = os.environ.get("LOSSGAUGE_TEST_DEVICE", "cpu")
ON_CUDA = DEVICE != "cpu"
if ON_CUDA:
    torch.set_default_device(DEVICE)  # of every tensor that names no device, in this process and in those that import this module anew
