"""Labels of packed documents, against a plain loop over positions."""

import random
import unittest

import torch

import device  # noqa: F401 (default device)
import lossgauge


def by_hand(tokens, ends, prompts, pad):
    """What each position is asked for, and why not."""
    labels, reasons = [], {"last": 0, "padding": 0, "prompt": 0, "unmasked": 0}
    for t in range(len(tokens)):
        owner = next((d for d in range(len(ends) - 1) if ends[d] <= t < ends[d + 1]), None)
        if owner is not None and t + 1 == ends[owner + 1]:
            reason = "last"
        elif owner is None or tokens[t + 1] == pad:
            reason = "padding"
        elif prompts is not None and t + 1 < ends[owner] + prompts[owner]:
            reason = "prompt"
        else:
            reason = "unmasked"
        reasons[reason] += 1
        labels.append(tokens[t + 1] if reason == "unmasked" else -100)
    return labels, reasons


class PackLabels(unittest.TestCase):
    def compare(self, tokens, ends, prompts=None, pad=None):
        got = lossgauge.pack_labels(torch.tensor(tokens, dtype=torch.int64), torch.tensor(ends), None if prompts is None else torch.tensor(prompts, dtype=torch.int64), pad)
        labels, reasons = by_hand(tokens, ends, prompts, pad)
        self.assertEqual(labels, got.labels.tolist())
        self.assertEqual(reasons, {"last": got.masked_last.item(), "padding": got.masked_padding.item(), "prompt": got.masked_prompt.item(),
                                   "unmasked": got.unmasked.item()})

    def test_two_documents_with_prompts_and_padding(self):
        got = lossgauge.pack_labels(torch.tensor([10, 11, 12, 13, 20, 21, 22, 0, 0]), torch.tensor([0, 4, 7]), torch.tensor([2, 1]), pad=0)
        # 11 is prompt; 12 is the answer's first token, asked for at the prompt's last position; 20 belongs to another document than 13.
        self.assertEqual([-100, 12, 13, -100, 21, 22, -100, -100, -100], got.labels.tolist())
        self.assertEqual((2, 2, 1, 4), (got.masked_last.item(), got.masked_padding.item(), got.masked_prompt.item(), got.unmasked.item()))

    def test_the_first_answer_token_is_not_lost_and_nothing_is_shifted_twice(self):
        tokens = torch.arange(100, 110)
        got = lossgauge.pack_labels(tokens, torch.tensor([0, 10]), torch.tensor([4]))
        self.assertEqual(104, got.labels[3].item())
        self.assertNotIn(105, got.labels[3:4].tolist())
        self.assertEqual(tokens[4:].tolist(), got.labels[got.labels != -100].tolist())

    def test_random_batches_against_a_plain_loop(self):
        random.seed(9)
        for _ in range(200):
            total = random.randrange(0, 30)
            documents = random.randrange(0, 6)
            ends = [0] + sorted(random.randrange(0, total + 1) for _ in range(documents))
            prompts = [random.randrange(0, 8) for _ in range(documents)] if random.random() < 0.7 else None
            self.compare([random.randrange(0, 5) for _ in range(total)], ends, prompts, random.choice([None, 0]))

    def refuse(self, name, *arguments):
        with self.subTest(name=name, arguments=arguments), self.assertRaisesRegex(ValueError, name):
            lossgauge.pack_labels(*arguments)

    def test_bad_shapes_and_types_are_named(self):
        tokens, whole = torch.arange(5), torch.tensor([0, 5])
        self.refuse("cu_seqlens", tokens, torch.tensor([], dtype=torch.int64))
        self.refuse("cu_seqlens", tokens, whole.float())
        self.refuse("prompt_lengths", tokens, whole, torch.tensor([1, 2]))
        self.refuse("tokens", tokens.float(), whole)
        self.refuse("tokens", tokens.view(1, 5), whole)
        self.refuse("cu_seqlens", tokens, whole.to("meta"))
        self.refuse("pad", tokens, whole, None, 0.5)
        self.refuse("pad: expected an int of 64 bits", tokens, whole, None, 2**64)  # which would be 0 in 64 bits
        with self.assertRaisesRegex(ValueError, "ignore_index: expected an int of 64 bits"):
            lossgauge.pack_labels(tokens, whole, ignore_index=2**64 - 100)

    def test_bad_lengths_are_named_where_the_host_can_read_them(self):
        tokens = torch.arange(5, device="cpu")
        for name, lengths in (("cu_seqlens", ([1, 5],)), ("cu_seqlens", ([0, 3, 2],)), ("cu_seqlens", ([0, 6],)), ("prompt_lengths", ([0, 5], [-1]))):
            self.refuse(name, tokens, *(torch.tensor(given, device="cpu") for given in lengths))


if __name__ == "__main__":
    unittest.main()
