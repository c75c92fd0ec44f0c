"""How many bytes of UTF-8 each token of a tokenizer stands for, so that a loss per token becomes bits per byte."""

import re

from . import errors

_SPACE = "\u2581"  # SentencePiece's sign for a space
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_MOST = 255


def _byte_letters():
    """Letters by which byte-level BPE (GPT-2 and its heirs) writes bytes: printable ones stand for themselves, the others for code points from 256 on."""
    printable = set(range(0x21, 0x7F)) | set(range(0xA1, 0xAD)) | set(range(0xAE, 0x100))
    letters, others = set(), 0
    for byte in range(256):
        if byte in printable:
            letters.add(chr(byte))
        else:
            letters.add(chr(256 + others))
            others += 1
    return letters


def byte_table(tokenizer, vocab_size=None):
    """Bytes of each token, [vocab_size] (None: the tokenizer's own), 0 for special tokens and for numbers that the tokenizer does not have.

    Takes a Hugging Face tokenizer (byte-level BPE or SentencePiece with or without byte fallback), a SentencePiece processor, or a tiktoken encoding. A piece
    that begins with a space counts it: in a text, what precedes a word belongs to it.
    """
    if hasattr(tokenizer, "decode_single_token_bytes"):
        table = _of_tiktoken(tokenizer)
    elif hasattr(tokenizer, "id_to_piece"):
        table = _of_sentencepiece(tokenizer)
    elif hasattr(tokenizer, "convert_ids_to_tokens"):
        table = _of_pieces(tokenizer)
    else:
        raise errors.InvalidArgument("tokenizer: expected one of Hugging Face, SentencePiece or tiktoken, got {}".format(type(tokenizer).__name__))
    if vocab_size is not None:
        if vocab_size < len(table) and any(table[vocab_size:]):
            raise errors.InvalidArgument("vocab_size: expected at least {}, the tokenizer's tokens, got {}".format(len(table), vocab_size))
        table = (table + [0] * vocab_size)[:vocab_size]
    return bytes(min(size, _MOST) for size in table)


def _of_tiktoken(encoding):
    table = []
    special = set(encoding._special_tokens.values()) if hasattr(encoding, "_special_tokens") else set()
    for token in range(encoding.n_vocab):
        try:
            table.append(0 if token in special else len(encoding.decode_single_token_bytes(token)))
        except KeyError:  # numbers between the ordinary and the special ones
            table.append(0)
    return table


def _of_sentencepiece(processor):
    table = []
    for token in range(processor.get_piece_size()):
        if processor.is_control(token) or processor.is_unused(token) or processor.is_unknown(token):
            table.append(0)
        elif processor.is_byte(token):
            table.append(1)
        else:
            table.append(len(processor.id_to_piece(token).replace(_SPACE, " ").encode()))
    return table


def _of_pieces(tokenizer):
    size = len(tokenizer)
    special = set(tokenizer.all_special_ids)
    added = {int(token) for token in getattr(tokenizer, "added_tokens_decoder", {})}
    pieces = [tokenizer.convert_ids_to_tokens(token) for token in range(size)]
    letters = _byte_letters()
    ordinary = [piece for token, piece in enumerate(pieces) if token not in special and token not in added and piece is not None]
    # SentencePiece's space is no letter of byte-level BPE, and a byte-level vocabulary holds all 256 letters.
    byte_level = letters.issubset(set(ordinary)) and all(set(piece) <= letters for piece in ordinary)
    table = []
    for token, piece in enumerate(pieces):
        if piece is None or token in special:
            table.append(0)
        elif token in added:
            table.append(len(piece.encode()))  # written as they are, in either kind
        elif byte_level:
            table.append(len(piece))
        elif _BYTE.match(piece):
            table.append(1)
        else:
            table.append(len(piece.replace(_SPACE, " ").encode()))
    return table
