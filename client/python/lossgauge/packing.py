"""Labels of a packed batch: shifted once, and masked where no token is to be predicted."""

import ctypes

import torch

from . import library, tensors
from .arguments import integer
from .compiling import outside_graphs
from .tensors import expect_tensor

_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


class PackedLabels:
    """labels: [T] int64, the token that position t is asked for, or ignore_index. Numbers of positions, as one-element int64 tensors on the labels' device
    (a position with two reasons counts for the first of this order): masked_last (of a document), masked_padding, masked_prompt, unmasked."""

    def __init__(self, labels, masked_last, masked_padding, masked_prompt, unmasked):
        self.labels, self.unmasked = labels, unmasked
        self.masked_last, self.masked_padding, self.masked_prompt = masked_last, masked_padding, masked_prompt


def pack_labels(tokens, cu_seqlens, prompt_lengths=None, pad=None, *, ignore_index=-100):
    """Labels for next-token prediction over packed documents.

    tokens [T]: token numbers. cu_seqlens [D + 1]: where documents begin, and the end of the last; what is behind it is padding. Starts at 0, never falls.
    prompt_lengths [D]: tokens of each document's prompt, which are not to be predicted (its answer's first token is); None: no prompts.
    pad: token number that is padding wherever it stands as a label; None: none is.

    Position t is asked for tokens[t + 1], once: pass the labels to a loss without shift=True. The last position of a document is asked for nothing, since
    the next token is another document's. Computed where `tokens` are, without waiting for a device; lengths that cannot be are refused on the CPU.
    """
    arrays = [("tokens", tokens), ("cu_seqlens", cu_seqlens)] + ([] if prompt_lengths is None else [("prompt_lengths", prompt_lengths)])
    for name, given in arrays:
        expect_tensor(isinstance(given, torch.Tensor) and given.dim() == 1 and given.dtype in _INTEGERS, name, "one dimension of integers", given)
        tensors.check_same_device(name, given, tokens.device, "tokens")
    expect_tensor(tokens.device.type in ("cpu", "cuda"), "tokens", "a tensor on a CPU or a CUDA device", tokens)
    expect_tensor(cu_seqlens.numel() >= 1, "cu_seqlens", "at least one number, the end of the last document", cu_seqlens)
    documents = cu_seqlens.numel() - 1
    if prompt_lengths is not None:
        expect_tensor(prompt_lengths.numel() == documents, "prompt_lengths", "{}, one for each document", prompt_lengths, documents)
    pad, ignore_index = None if pad is None else integer("pad", pad), integer("ignore_index", ignore_index)
    return outside_graphs(_pack_labels, tokens, cu_seqlens, prompt_lengths, pad, ignore_index)


def _pack_labels(tokens, cu_seqlens, prompt_lengths, pad, ignore_index):
    labels = torch.empty(tokens.shape, dtype=torch.int64, device=tokens.device)
    counts = torch.empty(4, dtype=torch.int64, device=tokens.device)
    numbers = tokens.contiguous() if tokens.dtype in tensors.INTEGERS else tokens.to(torch.int64)
    bounds = cu_seqlens.to(torch.int64).contiguous()
    prompts = None if prompt_lengths is None else prompt_lengths.to(torch.int64).contiguous()
    args = library.new("pack_labels_args")
    args.tokens, args.token_dtype, args.count = tensors.pointer(numbers), tensors.INTEGERS[numbers.dtype], tokens.numel()
    args.cu_seqlens, args.documents = tensors.pointer(bounds), cu_seqlens.numel() - 1
    args.prompt_lengths = tensors.pointer(prompts)
    args.has_pad, args.pad = pad is not None, 0 if pad is None else pad
    args.ignore_index = ignore_index
    args.labels, args.counts = tensors.pointer(labels), tensors.pointer(counts)
    args.stream = tensors.stream_of(tokens.device)
    library.call("pack_labels", ctypes.byref(args))
    return PackedLabels(labels, *counts)
