"""Labels of a packed batch: shifted once, and masked where no token is to be predicted."""

import torch

from . import errors, tensors
from .tensors import expect


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
    for name, given in (("tokens", tokens), ("cu_seqlens", cu_seqlens)) + ((("prompt_lengths", prompt_lengths),) if prompt_lengths is not None else ()):
        expect(isinstance(given, torch.Tensor) and given.dim() == 1 and not given.dtype.is_floating_point, name, "one dimension of integers", tensors.kind(given))
        tensors.check_same_device(name, given, tokens.device, "tokens")
    expect(cu_seqlens.numel() >= 1, "cu_seqlens", "at least one number, the end of the last document", tensors.kind(cu_seqlens))
    documents = cu_seqlens.numel() - 1
    if prompt_lengths is not None:
        expect(prompt_lengths.numel() == documents, "prompt_lengths", "{}, one for each document".format(documents), tensors.kind(prompt_lengths))
    total = tokens.numel()
    if not cu_seqlens.is_cuda:
        _check_lengths(cu_seqlens, prompt_lengths, total)

    device = tokens.device
    ends = cu_seqlens.to(torch.int64)
    position = torch.arange(total, device=device)
    document = torch.bucketize(position, ends[1:], right=True)  # documents without a token have no position
    behind = document >= documents
    owner = document.clamp(max=max(documents - 1, 0))
    begin = ends[:-1][owner] if documents else torch.zeros_like(position)
    end = ends[1:][owner] if documents else torch.zeros_like(position)
    following = torch.nn.functional.pad(tokens[1:].to(torch.int64), (0, 1), value=ignore_index)
    last = ~behind & (position + 1 == end)
    padding = behind.clone()
    if pad is not None:
        padding |= following == pad
    padding &= ~last
    prompt = torch.zeros_like(last)
    if prompt_lengths is not None and documents:
        prompt = ~last & ~padding & (position + 1 - begin < prompt_lengths.to(torch.int64)[owner])
    masked = last | padding | prompt
    labels = torch.where(masked, torch.full_like(following, ignore_index), following)
    return PackedLabels(labels, last.sum(), padding.sum(), prompt.sum(), (~masked).sum())


def _check_lengths(cu_seqlens, prompt_lengths, total):
    ends = cu_seqlens.tolist()
    expect(ends[0] == 0, "cu_seqlens", "0 first", ends[0])
    for before, after in zip(ends, ends[1:]):
        expect(before <= after, "cu_seqlens", "numbers that never fall", "{} behind {}".format(after, before))
    expect(ends[-1] <= total, "cu_seqlens", "at most {}, the number of tokens".format(total), ends[-1])
    if prompt_lengths is not None and any(length < 0 for length in prompt_lengths.tolist()):
        raise errors.InvalidArgument("prompt_lengths: expected no negative number, got {}".format(min(prompt_lengths.tolist())))
