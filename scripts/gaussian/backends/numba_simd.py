"""Vector instructions for the numba solver, emitted as LLVM so that they do not depend on the auto-vectorizer.

Left to itself, LLVM keeps the sums of a voxel's update in memory. Here they stay in vector registers: one lane is one
right-hand side, `lanes` of them are updated together. LLVM splits the vectors to whatever the CPU has (SSE, AVX2,
AVX-512, NEON).
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.errors import TypingError
from numba.extending import intrinsic

NEIGHBORS = 13
TILE = 16
"""Side of the square tiles in which rows are transposed: a cache line of float32."""

_I32, _I64 = ir.IntType(32), ir.IntType(64)


def _literal(value: Any, name: str) -> int:
    if not isinstance(value, types.IntegerLiteral):
        raise TypingError(f"{name} must be a compile-time integer")
    return value.literal_value


class _Vectors:
    """Loads, stores and arithmetic on vectors of `lanes` numbers at element offsets from a base pointer."""

    def __init__(self, builder: ir.IRBuilder, element: ir.Type, lanes: int) -> None:
        self.builder, self.lanes = builder, lanes
        self.type = ir.VectorType(element, lanes)
        self.align = 4 if isinstance(element, ir.FloatType) else 8  # arrays promise no more than one element
        name = f"llvm.fma.v{lanes}f{8 * self.align}"
        signature = ir.FunctionType(self.type, [self.type] * 3)
        self._fma = cgutils.get_or_insert_function(builder.module, signature, name)

    def _pointer(self, base: ir.Value, offset: ir.Value) -> ir.Value:
        return self.builder.bitcast(self.builder.gep(base, [offset]), self.type.as_pointer())

    def load(self, base: ir.Value, offset: ir.Value) -> ir.Value:
        value = self.builder.load(self._pointer(base, offset))
        value.align = self.align
        return value

    def store(self, value: ir.Value, base: ir.Value, offset: ir.Value) -> None:
        self.builder.store(value, self._pointer(base, offset)).align = self.align

    def broadcast(self, base: ir.Value, index: int) -> ir.Value:
        """The scalar base[index] in all lanes."""
        return self.fill(self.builder.load(self.builder.gep(base, [_I64(index)])))

    def fill(self, scalar: ir.Value) -> ir.Value:
        """A scalar in all lanes."""
        empty = ir.Constant(self.type, ir.Undefined)
        first = self.builder.insert_element(empty, scalar, _I32(0))
        return self.builder.shuffle_vector(first, empty, ir.Constant(ir.VectorType(_I32, self.lanes), [0] * self.lanes))

    def fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        """a * b + c."""
        return self.builder.call(self._fma, [a, b, c])

    def mul(self, a: ir.Value, b: ir.Value) -> ir.Value:
        return self.builder.fmul(a, b)

    def interleave(self, a: ir.Value, b: ir.Value, *, upper: bool) -> ir.Value:
        """a0 b0 a1 b1 … of the lower (or upper) halves."""
        start = self.lanes // 2 if upper else 0
        mask = [start + lane // 2 + (self.lanes if lane % 2 else 0) for lane in range(self.lanes)]
        return self.builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, self.lanes), mask))


def _data(context: Any, builder: ir.IRBuilder, array_type: Any, value: ir.Value) -> ir.Value:
    return context.make_array(array_type)(context, builder, value).data


@intrinsic(prefer_literal=True)
def update_voxel(typing_context, x, packed, table, x_start, packed_start, lanes, couplings):  # type: ignore[no-untyped-def]
    """Finish one voxel of a back-substitution, for `lanes` right-hand sides, in registers.

    x: 1-D scratch; the voxel's three channels start at x_start + table[13 .. 15]. packed: the voxel's inverse diagonal
    (3), negated own couplings (3) and negated neighbor couplings (13 * couplings) from packed_start. table: 13 element
    offsets of the neighbors, then the 3 channel offsets in the order 0, 1, 2 of the packing.
    """
    signature = types.void(x, packed, table, x_start, packed_start, lanes, couplings)
    num_lanes, num_couplings = _literal(lanes, "lanes"), _literal(couplings, "couplings")

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        x_data, packed_data, table_data = (_data(context, builder, sig.args[i], args[i]) for i in range(3))
        vector = _Vectors(builder, x_data.type.pointee, num_lanes)
        here = builder.gep(x_data, [args[3]])
        numbers = builder.gep(packed_data, [args[4]])

        def offset(slot: int) -> ir.Value:
            return builder.load(builder.gep(table_data, [_I64(slot)]))

        channel = [offset(NEIGHBORS + c) for c in range(3)]
        total = [vector.load(here, channel[c]) for c in range(3)]
        for neighbor in range(NEIGHBORS):
            start = 6 + neighbor * num_couplings
            there = offset(neighbor)
            for d in range(3):
                value = vector.load(here, builder.add(there, channel[d]))
                if num_couplings == 3:
                    total[d] = vector.fma(vector.broadcast(numbers, start + d), value, total[d])
                else:
                    for c in range(3):
                        total[c] = vector.fma(vector.broadcast(numbers, start + 3 * d + c), value, total[c])
        # The voxel's own 3x3 triangle, last channel first.
        last = vector.mul(total[2], vector.broadcast(numbers, 2))
        middle = vector.fma(vector.broadcast(numbers, 5), last, total[1])
        middle = vector.mul(middle, vector.broadcast(numbers, 1))
        first = vector.fma(vector.broadcast(numbers, 4), last, total[0])
        first = vector.fma(vector.broadcast(numbers, 3), middle, first)
        first = vector.mul(first, vector.broadcast(numbers, 0))
        for c, value in enumerate((first, middle, last)):
            vector.store(value, here, channel[c])
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def transpose_tile(typing_context, source, source_start, source_stride, target, target_start, target_stride):  # type: ignore[no-untyped-def]
    """Copy a square tile transposed: row i of target is column i of source, both 1-D arrays with a stride by row."""
    signature = types.void(source, source_start, source_stride, target, target_start, target_stride)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        source_data = _data(context, builder, sig.args[0], args[0])
        target_data = _data(context, builder, sig.args[3], args[3])
        vector = _Vectors(builder, source_data.type.pointee, TILE)

        def row(start: ir.Value, stride: ir.Value, index: int) -> ir.Value:
            return builder.add(start, builder.mul(stride, _I64(index)))

        rows = [vector.load(source_data, row(args[1], args[2], i)) for i in range(TILE)]
        # log2(TILE) perfect shuffles of the rows with their partners half a tile away transpose the tile.
        for _ in range(TILE.bit_length() - 1):
            half = TILE // 2
            rows = [vector.interleave(rows[i // 2], rows[i // 2 + half], upper=bool(i % 2)) for i in range(TILE)]
        for i in range(TILE):
            vector.store(rows[i], target_data, row(args[4], args[5], i))
        return context.get_dummy_value()

    return signature, codegen


@intrinsic
def prefetch(typing_context, array, index):  # type: ignore[no-untyped-def]
    """Ask for the cache line that holds array[index], for writing; wrong or outside addresses do no harm."""
    signature = types.void(array, index)

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        byte_pointer = ir.IntType(8).as_pointer()
        address = builder.gep(_data(context, builder, sig.args[0], args[0]), [args[1]])
        function = cgutils.get_or_insert_function(
            builder.module, ir.FunctionType(ir.VoidType(), [byte_pointer, _I32, _I32, _I32]), "llvm.prefetch.p0"
        )
        write, keep_in_all_levels, data = _I32(1), _I32(3), _I32(1)
        builder.call(function, [builder.bitcast(address, byte_pointer), write, keep_in_all_levels, data])
        return context.get_dummy_value()

    return signature, codegen


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

    def codegen(context, builder, sig, args):  # type: ignore[no-untyped-def]
        rows_data, columns_data, out_data = (_data(context, builder, sig.args[i], args[i]) for i in (0, 2, 7))
        vector = _Vectors(builder, rows_data.type.pointee, TILE)
        zero = ir.Constant(vector.type, None)
        sums = [cgutils.alloca_once_value(builder, zero) for _ in pairs]  # LLVM turns these into registers
        for value in sums:
            builder.store(zero, value)
        channel = [builder.mul(args[4], _I64(c)) for c in range(3)]
        with cgutils.for_range(builder, args[6]) as loop:
            shift = builder.mul(loop.index, args[5])
            left = [vector.load(rows_data, builder.add(builder.add(args[1], shift), channel[c])) for c in range(3)]
            right = [vector.load(columns_data, builder.add(builder.add(args[3], shift), channel[c])) for c in range(3)]
            for value, (r, c) in zip(sums, pairs, strict=True):
                builder.store(vector.fma(left[r], right[c], builder.load(value)), value)
        factor = vector.fill(args[9])
        for number, value in enumerate(sums):
            offset = builder.add(args[8], builder.mul(args[4], _I64(number)))
            vector.store(vector.mul(factor, builder.load(value)), out_data, offset)
        return context.get_dummy_value()

    return signature, codegen
