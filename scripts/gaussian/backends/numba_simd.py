"""The inner loops of the numba solver and of the products, written for vector registers."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

from scripts.gaussian.backends.lanes import I32, LANES, emitted

NEIGHBORS = 13
TILE = LANES
"""Side of the square tiles in which rows are transposed: a cache line of float32."""


def _literal(value: Any, name: str) -> int:
    if not isinstance(value, types.IntegerLiteral):
        raise TypingError(f"{name} must be a compile-time integer")
    return value.literal_value


@intrinsic(prefer_literal=True)
def update_voxel(typing_context, x, packed, table, x_start, packed_start, lanes, couplings):  # type: ignore[no-untyped-def]
    """Finish one voxel of a back-substitution, for `lanes` right-hand sides, in registers.

    x: 1-D scratch; the voxel's three channels start at x_start + table[13 .. 15]. packed: the voxel's inverse diagonal
    (3), negated own couplings (3) and negated neighbor couplings (13 * couplings) from packed_start. table: 13 element
    offsets of the neighbors, then the 3 channel offsets in the order 0, 1, 2 of the packing.
    """
    signature = types.void(x, packed, table, x_start, packed_start, lanes, couplings)
    num_lanes, num_couplings = _literal(lanes, "lanes"), _literal(couplings, "couplings")

    def emit(block, args):  # type: ignore[no-untyped-def]
        here, numbers, offsets = block.data(0, args[3]), block.data(1, args[4]), block.data(2)

        def number(index):  # type: ignore[no-untyped-def]
            return block.fill(block.number(numbers, index))

        channel = [block.number(offsets, NEIGHBORS + c) for c in range(3)]
        total = [block.load(here, channel[c]) for c in range(3)]
        for neighbor in range(NEIGHBORS):
            start = 6 + neighbor * num_couplings
            there = block.number(offsets, neighbor)
            for d in range(3):
                value = block.load(here, block.builder.add(there, channel[d]))
                if num_couplings == 3:
                    total[d] = number(start + d).times_plus(value, total[d])
                else:
                    for c in range(3):
                        total[c] = number(start + 3 * d + c).times_plus(value, total[c])
        # The voxel's own 3x3 triangle, last channel first.
        last = total[2] * number(2)
        middle = number(5).times_plus(last, total[1]) * number(1)
        first = number(3).times_plus(middle, number(4).times_plus(last, total[0])) * number(0)
        for c, value in enumerate((first, middle, last)):
            block.store(value, here, channel[c])

    return emitted(signature, emit, num_lanes)


@intrinsic
def transpose_tile(typing_context, source, source_start, source_stride, target, target_start, target_stride):  # type: ignore[no-untyped-def]
    """Copy a square tile transposed: row i of target is column i of source, both 1-D arrays with a stride by row."""
    signature = types.void(source, source_start, source_stride, target, target_start, target_stride)

    def emit(block, args):  # type: ignore[no-untyped-def]
        source, target = block.data(0, args[1]), block.data(3, args[4])
        rows = [block.load(source, at) for at in block.multiples(args[2], TILE)]
        # log2(TILE) perfect shuffles of the rows with their partners half a tile away transpose the tile.
        half = TILE // 2
        lower, upper = ([start + lane // 2 + TILE * (lane % 2) for lane in range(TILE)] for start in (0, half))
        for _ in range(TILE.bit_length() - 1):
            # a0 b0 a1 b1 … of the lower halves, then of the upper ones
            rows = [rows[i // 2].shuffled(rows[i // 2 + half], upper if i % 2 else lower) for i in range(TILE)]
        for row, at in zip(rows, block.multiples(args[5], TILE), strict=True):
            block.store(row, target, at)

    return emitted(signature, emit)


@intrinsic
def prefetch(typing_context, array, index):  # type: ignore[no-untyped-def]
    """Ask for the cache line that holds array[index], for writing; wrong or outside addresses do no harm."""
    signature = types.void(array, index)

    def emit(block, args):  # type: ignore[no-untyped-def]
        builder, byte_pointer = block.builder, ir.IntType(8).as_pointer()
        kind = ir.FunctionType(ir.VoidType(), [byte_pointer, I32, I32, I32])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        write, keep_in_all_levels, data = I32(1), I32(3), I32(1)
        builder.call(function, [builder.bitcast(block.data(0, args[1]), byte_pointer), write, keep_in_all_levels, data])

    return emitted(signature, emit)


@intrinsic(prefer_literal=True)
def sum_of_outer_products(  # type: ignore[no-untyped-def]
    typing_context, rows, row, columns, column, channel_stride, sample_stride, samples, out, to, sign, full
):
    """sign · Σ over samples of rows times columns at TILE neighboring voxels, summed in registers.

    The three channels of rows (from index row) meet those of columns (from index column): all nine pairs, row channel
    major, if `full` is 1, else the three with equal channels. The sums go to consecutive parameter channels of
    out, the first at index `to`; a channel is channel_stride numbers long everywhere.
    """
    signature = types.void(rows, row, columns, column, channel_stride, sample_stride, samples, out, to, sign, full)
    pairs = [(r, c) for r in range(3) for c in range(3) if _literal(full, "full") or r == c]

    def emit(block, args):  # type: ignore[no-untyped-def]
        rows, columns, out = block.data(0), block.data(2), block.data(7, args[8])
        channel = block.multiples(args[4], len(pairs))

        def channels(start, at, shift):  # type: ignore[no-untyped-def]
            # Added up in this order: from start + (shift + channel), LLVM makes a loop that takes a tenth longer.
            at = block.builder.add(at, shift)
            return [block.load(start, block.builder.add(at, channel[c])) for c in range(3)]

        def add(sample, sums):  # type: ignore[no-untyped-def]
            shift = block.builder.mul(sample, args[5])
            left, right = channels(rows, args[1], shift), channels(columns, args[3], shift)
            return [left[r].times_plus(right[c], total) for total, (r, c) in zip(sums, pairs, strict=True)]

        sums = block.sums([block.zeros(rows.type.pointee)] * len(pairs), args[6], add)
        for total, at in zip(sums, channel, strict=True):
            block.store(block.fill(args[9]) * total, out, at)

    return emitted(signature, emit)
