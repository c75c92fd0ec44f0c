"""Cross-entropy in float64, written out, and what the kernels promise against it."""

import torch


def losses(logits, labels, *, ignore_index=-100, label_smoothing=0.0, z_loss=0.0, logit_scale=1.0, logit_softcap=None, vocab_size=None):
    """Objective of each row of logits [rows, columns], float64; 0 at masked rows."""
    z = logits.double()[:, :vocab_size] * logit_scale
    if logit_softcap:
        z = logit_softcap * torch.tanh(z / logit_softcap)
    masked = (labels == ignore_index) | (labels < 0) | (labels >= z.shape[1])
    safe = torch.where(masked, torch.zeros_like(labels), labels).long()
    log_z = torch.logsumexp(z, dim=1)
    nll = log_z - z.gather(1, safe[:, None])[:, 0]
    objective = (1 - label_smoothing) * nll + label_smoothing * (log_z - z.mean(1)) + z_loss * log_z**2
    return torch.where(masked, torch.zeros_like(objective), objective), masked


def reduced(logits, labels, reduction="mean", denominator=None, **options):
    each, masked = losses(logits, labels, **options)
    if reduction == "none":
        return each
    if reduction == "sum":
        return each.sum()
    return each.sum() / (max(int((~masked).sum()), 1) if denominator is None else float(denominator))


def gradient_bound(expected, dtype):
    """Largest difference from the float64 gradient, elementwise. bf16 and fp16: half a unit in the last place and 2^-8 of one, and as much again where the
    gradient was scaled afterwards."""
    if dtype == torch.float32:
        return 2e-6 * expected.abs() + 2e-7 * expected.abs().max()
    bits, tiny = (8, 2.0**-133) if dtype == torch.bfloat16 else (11, 2.0**-24)
    ulp = torch.clamp(2.0 ** (torch.floor(torch.log2(expected.abs().clamp(min=1e-300))) - bits + 1), min=tiny)
    return 0.51 * ulp + 1e-6 * expected.abs().max()
