"""Tensors of torch as the C ABI sees them: a pointer, sizes and strides, on a device and a stream."""

import torch

from . import abi, errors

FLOATS = {torch.float32: abi.FP32, torch.bfloat16: abi.BF16, torch.float16: abi.FP16}
INTEGERS = {torch.int32: abi.INT32, torch.int64: abi.INT64}


def expect(condition, name, expected, got):
    if not condition:
        raise errors.InvalidArgument("{}: expected {}, got {}".format(name, expected, got))


def kind(tensor):
    """What a message says of a value that was handed in."""
    if not isinstance(tensor, torch.Tensor):
        return type(tensor).__name__
    return "{} {} on {}".format(str(tensor.dtype).replace("torch.", ""), list(tensor.shape), tensor.device)


def check_floats(name, tensor, dims=None):
    """A dense tensor of fp32, bf16 or fp16 on a CPU or a CUDA device."""
    expect(isinstance(tensor, torch.Tensor), name, "a tensor", kind(tensor))
    expect(tensor.dtype in FLOATS, name, "float32, bfloat16 or float16", kind(tensor))
    expect(tensor.layout == torch.strided, name, "a dense tensor", str(tensor.layout))
    expect(tensor.device.type in ("cpu", "cuda"), name, "a tensor on a CPU or a CUDA device", kind(tensor))
    if dims is not None:
        expect(tensor.dim() == dims, name, "{} dimension{}".format(dims, "" if dims == 1 else "s"), kind(tensor))


def check_same_device(name, tensor, device, where):
    expect(tensor.device == device, name, "a tensor on {}, where {} is".format(device, where), kind(tensor))


def as_rows(tensor):
    """[..., columns] as [rows, columns] with unit column stride and one row stride: a view where the strides allow, else a copy."""
    columns = tensor.shape[-1]
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
    return None if tensor is None or tensor.data_ptr() == 0 else tensor.data_ptr()


def stream_of(device):
    """cudaStream_t of the stream that torch would launch on; None on a CPU."""
    return torch.cuda.current_stream(device).cuda_stream if device.type == "cuda" else None


def threads():
    return torch.get_num_threads()


def scalar_on(value, device, dtype):
    """A number or a one-element tensor as a one-element tensor on `device`, without waiting for the device."""
    if isinstance(value, torch.Tensor) and (value.device.type != "cpu" or device.type == "cpu"):
        return value.detach().to(device=device, dtype=dtype).reshape(())
    # From the host as a kernel's argument: a copy from its pageable memory would wait.
    return torch.full((), float(value), dtype=dtype, device=device)
