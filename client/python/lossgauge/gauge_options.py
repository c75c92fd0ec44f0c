"""What a job says of a rank when it opens a gauge, as the library takes it."""

import ctypes

from . import abi, library
from .arguments import encoded, expect, integer, number, refuse
from .layout import distributed_defaults


def gauge_options(run, *, attempt, rank, world_size, dp, tp, pp, cp, ep, has_loss, gradient_reduction, vocab_size, shard_offset, shard_columns,
                  label_smoothing, z_loss, ring_dir, group, byte_table, blocks, first_step):
    """lg_gauge_options, and the buffers that its pointers lead to: they must outlive the call that reads it. Arguments as those of Gauge."""
    if not isinstance(gradient_reduction, str) or gradient_reduction not in abi.GRADIENT_REDUCTIONS:
        refuse("gradient_reduction", "'mean', 'sum' or 'unknown'", repr(gradient_reduction))
    options = library.new("gauge_options")
    shared = distributed_defaults(rank, world_size, attempt)
    options.run, options.attempt = encoded("run", run), encoded("attempt", shared.attempt)
    options.attempt_start_wall_ns = shared.start_wall_ns
    if shared.rank is not None:
        options.rank = integer("rank", shared.rank, 32)
    if shared.world_size is not None:
        options.world_size = integer("world_size", shared.world_size, 32)
    for name, axis in (("dp", dp), ("tp", tp), ("pp", pp), ("cp", cp), ("ep", ep)):
        if axis is None:
            continue
        try:
            size, index = axis
        except (TypeError, ValueError):
            refuse(name, "(size, index)", repr(axis))
        setattr(options, name, abi.Axis(integer(name, size, 32), integer(name, index, 32)))
    options.has_loss = bool(has_loss)
    options.gradient_reduction = abi.GRADIENT_REDUCTIONS[gradient_reduction]
    options.vocab_size = integer("vocab_size", vocab_size)
    options.shard_offset, options.shard_columns = integer("shard_offset", shard_offset), integer("shard_columns", shard_columns)
    options.label_smoothing, options.z_loss_weight = number("label_smoothing", label_smoothing), number("z_loss", z_loss)
    options.ring_dir, options.group = encoded("ring_dir", ring_dir), encoded("group", group)
    kept = []
    if byte_table is not None:
        expect(not isinstance(byte_table, (str, int)), "byte_table", "bytes", type(byte_table).__name__)
        try:
            table = bytes(byte_table)
        except (TypeError, ValueError):  # not numbers, or not of 0 to 255
            refuse("byte_table", "bytes, or numbers from 0 to 255", type(byte_table).__name__)
        expect(len(table) == vocab_size, "byte_table", "vocab_size = {} entries".format(vocab_size), len(table))
        kept_table = ctypes.create_string_buffer(table, max(1, len(table)))
        kept.append(kept_table)
        options.token_bytes = ctypes.cast(kept_table, ctypes.c_void_p)
    if blocks is not None:
        expect(isinstance(blocks, (list, tuple)) and all(isinstance(name, str) for name in blocks), "blocks", "a list of names", repr(blocks))
        names = (ctypes.c_char_p * len(blocks))(*[encoded("blocks", name) for name in blocks])
        kept.append(names)
        options.block_names, options.block_count = names, len(blocks)
    options.first_step = integer("first_step", first_step)
    return options, kept
