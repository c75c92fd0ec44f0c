"""Bytes of tokens, by encoding real text: what the tokens of a text stand for is as long as the text."""

import unittest

import lossgauge
from lossgauge.token_bytes import _byte_letters

TEXT = "Größe zählt: 3 Äpfel für 2 €, 日本語のテキスト, naïve café 🙂 and plain words.\n\tIndented  twice."


def letters_of_bytes():
    """GPT-2's own table, written out: byte -> letter."""
    kept = list(range(ord("!"), ord("~") + 1)) + list(range(ord("¡"), ord("¬") + 1)) + list(range(ord("®"), ord("ÿ") + 1))
    letters, extra = {byte: chr(byte) for byte in kept}, 0
    for byte in range(256):
        if byte not in letters:
            letters[byte] = chr(256 + extra)
            extra += 1
    return letters


class Pieces:
    """A tokenizer with the interface of Hugging Face's, greedy over a list of pieces."""

    def __init__(self, pieces, special=(), added=()):
        self.pieces, self.all_special_ids = pieces, list(special)
        self.added_tokens_decoder = {token: pieces[token] for token in added}

    def __len__(self):
        return len(self.pieces)

    def convert_ids_to_tokens(self, token):
        return self.pieces[token]

    def encode(self, text):
        tokens, at = [], 0
        known = {piece: token for token, piece in enumerate(self.pieces) if piece is not None}
        while at < len(text):
            for length in range(min(12, len(text) - at), 0, -1):
                if text[at:at + length] in known:
                    tokens.append(known[text[at:at + length]])
                    at += length
                    break
            else:
                tokens += [known["<0x{:02X}>".format(byte)] for byte in text[at].encode()]
                at += 1
        return tokens


class ByteTable(unittest.TestCase):
    def test_byte_level_bpe(self):
        letters = letters_of_bytes()
        self.assertEqual(set(letters.values()), _byte_letters())

        def write(text):
            return "".join(letters[byte] for byte in text.encode())

        pieces = list(letters.values()) + [write(" and"), write("für"), write(" naïve"), write("🙂"), write("日本"), "<|endoftext|>"]
        tokenizer = Pieces(pieces, special=[len(pieces) - 1], added=[len(pieces) - 1])
        table = lossgauge.byte_table(tokenizer)
        tokens = tokenizer.encode(write(TEXT))
        self.assertIn(pieces.index(write("日本")), tokens)
        self.assertEqual(len(TEXT.encode()), sum(table[token] for token in tokens))
        self.assertEqual(0, table[-1])
        self.assertEqual(4, table[pieces.index(write("🙂"))])

    def test_pieces_of_sentencepiece_with_byte_fallback(self):
        pieces = ["<unk>", "<s>", "</s>"] + ["<0x{:02X}>".format(byte) for byte in range(256)] + ["▁", "▁and", "▁für", "plain", "▁▁", "日本語"] + list("abcdefghijklmnopqrstuvwxyz.,:")
        tokenizer = Pieces(pieces, special=[0, 1, 2])
        table = lossgauge.byte_table(tokenizer)
        tokens = tokenizer.encode(TEXT.replace(" ", "▁"))
        self.assertEqual(len(TEXT.encode()), sum(table[token] for token in tokens))
        self.assertEqual(b"\0\0\0", table[:3])
        self.assertEqual(1, table[pieces.index("<0x41>")])
        self.assertEqual(9, table[pieces.index("日本語")])

    def test_sentencepiece_and_tiktoken(self):
        class Processor:
            pieces = ["<unk>", "<s>", "<0xF0>", "▁cat", "é"]
            get_piece_size = lambda self: 5
            is_control = lambda self, token: token == 1
            is_unknown = lambda self, token: token == 0
            is_unused = lambda self, token: False
            is_byte = lambda self, token: token == 2
            id_to_piece = lambda self, token: self.pieces[token]

        self.assertEqual(bytes([0, 0, 1, 4, 2]), lossgauge.byte_table(Processor()))

        class Encoding:
            n_vocab = 4
            _special_tokens = {"<|end|>": 3}

            def decode_single_token_bytes(self, token):
                return {0: b"a", 1: b"\xc3\xa9", 3: b"<|end|>"}[token]

        self.assertEqual(bytes([1, 2, 0, 0]), lossgauge.byte_table(Encoding()))

    def test_padded_vocabulary_and_bad_input(self):
        tokenizer = Pieces(["<unk>", "ab", "c"], special=[0])
        self.assertEqual(bytes([0, 2, 1, 0, 0]), lossgauge.byte_table(tokenizer, vocab_size=5))
        with self.assertRaisesRegex(ValueError, "vocab_size: expected at least 3"):
            lossgauge.byte_table(tokenizer, vocab_size=2)
        with self.assertRaisesRegex(ValueError, "tokenizer: expected one of"):
            lossgauge.byte_table("gpt2")


if __name__ == "__main__":
    unittest.main()
