"""Tensors of torch as the C ABI sees them: a pointer, sizes and strides, on a device and a stream."""

import torch

from . import abi
from .arguments import expect, refuse

FLOATS = {torch.float32: abi.FP32, torch.bfloat16: abi.BF16, torch.float16: abi.FP16}
INTEGERS = {torch.int32: abi.INT32, torch.int64: abi.INT64}
DEVICES = ("cpu", "cuda")
_PLAIN = (torch.Tensor, torch.nn.Parameter)  # others may have no memory of their own


def expect_tensor(condition, name, expected, tensor, *parts):
    """expect of a tensor, whose kind is put into words, as the `parts` are into `expected`, only where the condition does not hold: loss calls are short."""
    if not condition:
        refuse(name, expected.format(*parts), kind(tensor))


def kind(tensor):
    """What a message says of a value that was handed in."""
    if not isinstance(tensor, torch.Tensor):
        return type(tensor).__name__
    return "{} {} on {}".format(str(tensor.dtype).replace("torch.", ""), list(tensor.shape), tensor.device)


def check_floats(name, tensor, dims=None):
    """A dense tensor of fp32, bf16 or fp16 on a CPU or a CUDA device."""
    if (type(tensor) in _PLAIN and tensor.dtype in FLOATS and tensor.layout == torch.strided and tensor.device.type in DEVICES
            and (dims is None or tensor.dim() == dims)):
        return
    expect_tensor(isinstance(tensor, torch.Tensor), name, "a tensor", tensor)
    if hasattr(tensor, "full_tensor"):
        refuse(name, "this rank's own part of a distributed tensor (to_local()), with vocab_parallel_cross_entropy where its columns are spread", "a DTensor")
    expect_tensor(tensor.dtype in FLOATS, name, "float32, bfloat16 or float16", tensor)
    expect(tensor.layout == torch.strided, name, "a dense tensor", tensor.layout)
    expect_tensor(tensor.device.type in DEVICES, name, "a tensor on a CPU or a CUDA device", tensor)
    expect_tensor(dims is None or tensor.dim() == dims, name, "{} dimension{}", tensor, dims, "" if dims == 1 else "s")


def check_same_device(name, tensor, device, where):
    expect_tensor(tensor.device == device, name, "a tensor on {}, where {} is", tensor, device, where)


def as_rows(tensor):
    """[..., columns] as [rows, columns] with unit column stride and one row stride: a view where the strides allow, else a copy."""
    columns = tensor.shape[-1]
    if tensor.dim() == 2 and tensor.stride(1) == 1 and tensor.stride(0) >= columns:  # as most often: nothing to do
        return tensor
    rows = tensor.numel() // columns if columns else 0
    if columns > 1 and tensor.stride(-1) != 1:
        tensor = tensor.contiguous()
    try:
        flat = tensor.view(rows, columns)
    except RuntimeError:  # leading dimensions that no single stride walks
        flat = tensor.contiguous().view(rows, columns)
    # Expanded rows lie on one another, and rows may lie closer than they are long in strided views.
    return flat.contiguous() if rows > 1 and flat.stride(0) < columns else flat


def row_stride(rows):
    return rows.stride(0) if rows.shape[0] > 1 else rows.shape[1]


def pointer(tensor):
    """Address of the first element; None for an absent tensor. Empty tensors have none, and the library reads nothing of them."""
    return None if tensor is None else tensor.data_ptr() or None


# What torch's own generated code calls: the number alone, without an object around it.
_raw_stream = getattr(torch._C, "_cuda_getCurrentRawStream", None)


def stream_of(device):
    """cudaStream_t of the stream that torch would launch on; None on a CPU."""
    if device.type != "cuda":
        return None
    if _raw_stream is not None and device.index is not None:
        return _raw_stream(device.index)
    return torch.cuda.current_stream(device).cuda_stream


def run_on(args, device):
    """Stream or threads of a call into its arguments."""
    if device.type == "cuda":
        args.stream = stream_of(device)
    else:
        args.threads = torch.get_num_threads()


def scalar_on(value, device, dtype):
    """A number or a one-element tensor as a one-element tensor on `device`, without waiting for the device."""
    if isinstance(value, torch.Tensor) and (value.device.type != "cpu" or device.type == "cpu"):
        return value.detach().to(device=device, dtype=dtype).reshape(())
    # From the host as a kernel's argument: a copy from its pageable memory would wait.
    return torch.full((), float(value), dtype=dtype, device=device)
