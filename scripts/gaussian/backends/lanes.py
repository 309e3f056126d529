"""Formulas on many numbers at a time, for compiled loops that LLVM would not vectorize by itself.

LLVM turns a loop into vector instructions only if it can show that no store changes what a later turn loads. With
positions that are computed (a gather), or with a dozen arrays, it cannot, and it keeps sums in memory that would fit
the registers. A block of such a loop is therefore written down here for all of its lanes, with the arithmetic signs of
a formula; LLVM splits the vectors to whatever the CPU has (SSE, AVX2, AVX-512, NEON).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

LANES = 16
"""Numbers of a block, if nothing else is said: an AVX-512 register of float32, two of float64."""

_I1, I32, I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
F32, F64 = ir.FloatType(), ir.DoubleType()
_ALIGN = {F32: 4, F64: 8, I64: 8}
_MANGLED = {F32: "f32", F64: "f64", I64: "i64"}


class Lanes:
    """The numbers of a block. Plain Python numbers in a formula stand for the same number in all lanes."""

    def __init__(self, builder: ir.IRBuilder, value: ir.Value) -> None:
        self.builder, self.value = builder, value

    @property
    def element(self) -> ir.Type:
        """LLVM's type of one number."""
        return self.value.type.element

    @property
    def count(self) -> int:
        """How many there are."""
        return self.value.type.count

    def _other(self, other: Lanes | float) -> ir.Value:
        if isinstance(other, Lanes):
            return other.value
        return ir.Constant(self.value.type, [other] * self.count)

    def _apply(self, floats: str, integers: str, other: Lanes | float) -> Lanes:
        name = floats if self.element in (F32, F64) else integers
        return Lanes(self.builder, getattr(self.builder, name)(self.value, self._other(other)))

    def __add__(self, other: Lanes | float) -> Lanes:
        return self._apply("fadd", "add", other)

    def __sub__(self, other: Lanes | float) -> Lanes:
        return self._apply("fsub", "sub", other)

    def __mul__(self, other: Lanes | float) -> Lanes:
        return self._apply("fmul", "mul", other)

    def __truediv__(self, other: Lanes | float) -> Lanes:
        return self._apply("fdiv", "sdiv", other)

    def times_plus(self, factor: Lanes, term: Lanes) -> Lanes:
        """self · factor + term with a single rounding."""
        return self._call("fma", factor, term)

    def at_least(self, bound: Lanes | float) -> Lanes:
        """The larger one of two numbers; the bound where this one is NaN."""
        return self._if(">", bound)

    def at_most(self, bound: Lanes | float) -> Lanes:
        """The smaller one of two numbers; the bound where this one is NaN."""
        return self._if("<", bound)

    def _if(self, comparison: str, other: Lanes | float) -> Lanes:
        other = self._other(other)
        holds = self.builder.fcmp_ordered(comparison, self.value, other)
        return Lanes(self.builder, self.builder.select(holds, self.value, other))

    def floor(self) -> Lanes:
        """The next whole number below, still a float."""
        return self._call("floor")

    def to(self, element: ir.Type) -> Lanes:
        """Whole float32 as int32, float32 as float64, or float64 rounded to float32."""
        step = {(F32, I32): "fptosi", (F32, F64): "fpext", (F64, F32): "fptrunc"}[self.element, element]
        return Lanes(self.builder, getattr(self.builder, step)(self.value, self._type(element)))

    def halves(self) -> tuple[Lanes, Lanes]:
        """The two float32 that each int64 is made of, the one at the lower address first."""
        pairs = Lanes(self.builder, self.builder.bitcast(self.value, ir.VectorType(F32, 2 * self.count)))
        low, high = (pairs.shuffled(pairs, range(half, 2 * self.count, 2)) for half in (0, 1))
        return low, high

    def shuffled(self, other: Lanes, places: Sequence[int]) -> Lanes:
        """The numbers in these places; those of the other lanes are counted on from these."""
        mask = ir.Constant(ir.VectorType(I32, len(places)), list(places))
        return Lanes(self.builder, self.builder.shuffle_vector(self.value, other.value, mask))

    def _type(self, element: ir.Type) -> ir.VectorType:
        return ir.VectorType(element, self.count)

    def _call(self, name: str, *others: Lanes) -> Lanes:
        signature = ir.FunctionType(self.value.type, [self.value.type] * (1 + len(others)))
        mangled = f"llvm.{name}.v{self.count}{_MANGLED[self.element]}"
        function = cgutils.get_or_insert_function(self.builder.module, signature, mangled)
        return Lanes(self.builder, self.builder.call(function, [self.value, *(other.value for other in others)]))


def emitted(signature: Any, emit: Callable[[Block, Any], None], lanes: int = LANES) -> tuple[Any, Callable[..., Any]]:
    """What numba's `intrinsic` wants of a function without a result: the arguments' types, and what emits its code."""

    def codegen(context: Any, builder: ir.IRBuilder, sig: Any, args: Any) -> ir.Value:
        emit(Block(context, builder, sig, args, lanes), args)
        return context.get_dummy_value()

    return signature, codegen


class Block:
    """One call of an intrinsic: its arguments, of which arrays are one-dimensional and read and written by blocks."""

    def __init__(self, context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any, lanes: int = LANES) -> None:
        self._context, self.builder, self._lanes = context, builder, lanes
        self._types, self._values = signature.args, arguments

    def data(self, argument: int, index: ir.Value | int = 0) -> ir.Value:
        """Where the element with this index of an array argument lies."""
        array = self._context.make_array(self._types[argument])(self._context, self.builder, self._values[argument])
        return self.builder.gep(array.data, [self._index(index)])

    def load(self, start: ir.Value, index: ir.Value | int = 0) -> Lanes:
        """The numbers from `index` after `start`, one a lane."""
        value = self.builder.load(self._pointer(start, index))
        value.align = _ALIGN[value.type.element]  # arrays promise no more than one element
        return Lanes(self.builder, value)

    def store(self, lanes: Lanes, start: ir.Value, index: ir.Value | int = 0) -> None:
        """Write them there."""
        self.builder.store(lanes.value, self._pointer(start, index)).align = _ALIGN[lanes.element]

    def number(self, start: ir.Value, index: ir.Value | int = 0) -> ir.Value:
        """The single number at `index` after `start`."""
        return self.builder.load(self.builder.gep(start, [self._index(index)]))

    def fill(self, scalar: ir.Value) -> Lanes:
        """One number in all lanes."""
        empty = ir.Constant(ir.VectorType(scalar.type, self._lanes), ir.Undefined)
        first = Lanes(self.builder, self.builder.insert_element(empty, scalar, I32(0)))
        return first.shuffled(first, [0] * self._lanes)

    def zeros(self, element: ir.Type) -> Lanes:
        """0 in all lanes."""
        return Lanes(self.builder, ir.Constant(ir.VectorType(element, self._lanes), None))

    def counting(self, element: ir.Type) -> Lanes:
        """0, 1, 2, …"""
        return Lanes(self.builder, ir.Constant(ir.VectorType(element, self._lanes), list(range(self._lanes))))

    def gather(self, start: ir.Value, positions: Lanes) -> Lanes:
        """The numbers at these positions (int32) after `start`."""
        element = start.type.pointee
        addresses = self.builder.gep(self.fill(start).value, [positions.value], source_etype=element)
        result, mask = positions._type(element), positions._type(_I1)
        function = cgutils.get_or_insert_function(
            self.builder.module,
            ir.FunctionType(result, [addresses.type, I32, mask, result]),
            f"llvm.masked.gather.v{self._lanes}{_MANGLED[element]}.v{self._lanes}p0",
        )
        everywhere = ir.Constant(mask, [1] * self._lanes)
        arguments = [addresses, I32(_ALIGN[element]), everywhere, ir.Constant(result, ir.Undefined)]
        return Lanes(self.builder, self.builder.call(function, arguments))

    def sums(
        self, starts: list[Lanes], count: ir.Value, add: Callable[[ir.Value, list[Lanes]], list[Lanes]]
    ) -> list[Lanes]:
        """What has become of the starts after sums = add(index, sums) for the indices 0 … count − 1."""
        # Variables in memory, which LLVM turns into registers.
        totals = [cgutils.alloca_once_value(self.builder, start.value) for start in starts]
        for total, start in zip(totals, starts, strict=True):
            self.builder.store(start.value, total)

        def values() -> list[Lanes]:
            return [Lanes(self.builder, self.builder.load(total)) for total in totals]

        with cgutils.for_range(self.builder, count) as loop:
            for total, value in zip(totals, add(loop.index, values()), strict=True):
                self.builder.store(value.value, total)
        return values()

    def multiples(self, stride: ir.Value, count: int) -> list[ir.Value]:
        """A stride times 0, 1, 2, …"""
        return [self.builder.mul(stride, I64(number)) for number in range(count)]

    def _index(self, index: ir.Value | int) -> ir.Value:
        return I64(index) if isinstance(index, int) else index

    def _pointer(self, start: ir.Value, index: ir.Value | int) -> ir.Value:
        address = self.builder.gep(start, [self._index(index)])
        return self.builder.bitcast(address, ir.VectorType(start.type.pointee, self._lanes).as_pointer())
