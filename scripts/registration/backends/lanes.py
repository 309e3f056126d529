"""Formulas on 16 numbers at a time, for compiled loops that LLVM would not vectorize by itself.

LLVM turns a loop into vector instructions only if it can show that no store changes what a later turn loads. With
positions that are computed (a gather), or with a dozen arrays, it cannot. A block of such a loop is therefore written
down here for all of its lanes, with the arithmetic signs of a formula; LLVM splits the vectors to whatever the CPU has
(SSE, AVX2, AVX-512, NEON).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba.core import cgutils

LANES = 16
"""Numbers of a block: an AVX-512 register of float32, two of float64."""

_I1, I32, I64 = ir.IntType(1), ir.IntType(32), ir.IntType(64)
F32, F64 = ir.FloatType(), ir.DoubleType()
_ALIGN = {F32: 4, F64: 8, I64: 8}
_MANGLED = {F32: "f32", F64: "f64", I64: "i64"}


def _vector(element: ir.Type, count: int = LANES) -> ir.VectorType:
    return ir.VectorType(element, count)


class Lanes:
    """The numbers of a block. Plain Python numbers in a formula stand for the same number in all lanes."""

    def __init__(self, builder: ir.IRBuilder, value: ir.Value) -> None:
        self.builder, self.value = builder, value

    @property
    def element(self) -> ir.Type:
        """LLVM's type of one number."""
        return self.value.type.element

    def _other(self, other: Lanes | float) -> ir.Value:
        if isinstance(other, Lanes):
            return other.value
        return ir.Constant(self.value.type, [other] * LANES)

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
        bound = self._other(bound)
        larger = self.builder.fcmp_ordered(">", self.value, bound)
        return Lanes(self.builder, self.builder.select(larger, self.value, bound))

    def at_most(self, bound: Lanes | float) -> Lanes:
        """The smaller one of two numbers; the bound where this one is NaN."""
        bound = self._other(bound)
        smaller = self.builder.fcmp_ordered("<", self.value, bound)
        return Lanes(self.builder, self.builder.select(smaller, self.value, bound))

    def floor(self) -> Lanes:
        """The next whole number below, still a float."""
        return self._call("floor")

    def integers(self) -> Lanes:
        """Whole floats as int32."""
        return Lanes(self.builder, self.builder.fptosi(self.value, _vector(I32)))

    def double(self) -> Lanes:
        """float32 as float64."""
        return Lanes(self.builder, self.builder.fpext(self.value, _vector(F64)))

    def single(self) -> Lanes:
        """float64 rounded to float32."""
        return Lanes(self.builder, self.builder.fptrunc(self.value, _vector(F32)))

    def halves(self) -> tuple[Lanes, Lanes]:
        """The two float32 that each int64 is made of, the one at the lower address first."""
        pairs = self.builder.bitcast(self.value, _vector(F32, 2 * LANES))
        every_second = [ir.Constant(_vector(I32), [2 * lane + half for lane in range(LANES)]) for half in (0, 1)]
        low, high = (self.builder.shuffle_vector(pairs, pairs, mask) for mask in every_second)
        return Lanes(self.builder, low), Lanes(self.builder, high)

    def _call(self, name: str, *others: Lanes) -> Lanes:
        signature = ir.FunctionType(self.value.type, [self.value.type] * (1 + len(others)))
        mangled = f"llvm.{name}.v{LANES}{_MANGLED[self.element]}"
        function = cgutils.get_or_insert_function(self.builder.module, signature, mangled)
        return Lanes(self.builder, self.builder.call(function, [self.value, *(other.value for other in others)]))


class Block:
    """One call of an intrinsic: its arguments, of which arrays are one-dimensional and read and written by blocks."""

    def __init__(self, context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any) -> None:
        self._context, self.builder = context, builder
        self._types, self._values = signature.args, arguments

    def scalar(self, argument: int) -> ir.Value:
        """An argument that is one number."""
        return self._values[argument]

    def data(self, argument: int, index: ir.Value | int = 0) -> ir.Value:
        """Where the element with this index of an array argument lies."""
        array = self._context.make_array(self._types[argument])(self._context, self.builder, self._values[argument])
        return self.builder.gep(array.data, [self._index(index)])

    def load(self, start: ir.Value, index: ir.Value | int = 0) -> Lanes:
        """LANES numbers from `index` after `start`."""
        value = self.builder.load(self._pointer(start, index))
        value.align = _ALIGN[value.type.element]
        return Lanes(self.builder, value)

    def store(self, lanes: Lanes, start: ir.Value, index: ir.Value | int = 0) -> None:
        """Write them there."""
        self.builder.store(lanes.value, self._pointer(start, index)).align = _ALIGN[lanes.element]

    def number(self, start: ir.Value, index: ir.Value | int = 0) -> ir.Value:
        """The single number at `index` after `start`."""
        return self.builder.load(self.builder.gep(start, [self._index(index)]))

    def fill(self, scalar: ir.Value) -> Lanes:
        """One number in all lanes."""
        return Lanes(self.builder, self._splat(scalar))

    def counting(self, element: ir.Type) -> Lanes:
        """0, 1, 2, …"""
        return Lanes(self.builder, ir.Constant(_vector(element), list(range(LANES))))

    def gather(self, start: ir.Value, positions: Lanes) -> Lanes:
        """The numbers at these positions (int32) after `start`."""
        element = start.type.pointee
        addresses = self.builder.gep(self._splat(start), [positions.value], source_etype=element)
        result, mask = _vector(element), _vector(_I1)
        function = cgutils.get_or_insert_function(
            self.builder.module,
            ir.FunctionType(result, [addresses.type, I32, mask, result]),
            f"llvm.masked.gather.v{LANES}{_MANGLED[element]}.v{LANES}p0",
        )
        everywhere = ir.Constant(mask, [1] * LANES)
        arguments = [addresses, I32(_ALIGN[element]), everywhere, ir.Constant(result, ir.Undefined)]
        return Lanes(self.builder, self.builder.call(function, arguments))

    def sum_over(self, count: ir.Value, terms: Callable[[ir.Value], list[Lanes]], starts: list[Lanes]) -> list[Lanes]:
        """starts + Σ terms(0 … count − 1), each sum in registers."""
        sums = [cgutils.alloca_once_value(self.builder, start.value) for start in starts]
        for total, start in zip(sums, starts, strict=True):
            self.builder.store(start.value, total)
        with cgutils.for_range(self.builder, count) as loop:
            for total, term in zip(sums, terms(loop.index), strict=True):
                self.builder.store((Lanes(self.builder, self.builder.load(total)) + term).value, total)
        return [Lanes(self.builder, self.builder.load(total)) for total in sums]

    def done(self) -> ir.Value:
        """What an intrinsic without a result returns."""
        return self._context.get_dummy_value()

    def _index(self, index: ir.Value | int) -> ir.Value:
        return I64(index) if isinstance(index, int) else index

    def _pointer(self, start: ir.Value, index: ir.Value | int) -> ir.Value:
        address = self.builder.gep(start, [self._index(index)])
        return self.builder.bitcast(address, _vector(start.type.pointee).as_pointer())

    def _splat(self, scalar: ir.Value) -> ir.Value:
        empty = ir.Constant(_vector(scalar.type), ir.Undefined)
        first = self.builder.insert_element(empty, scalar, I32(0))
        return self.builder.shuffle_vector(first, empty, ir.Constant(_vector(I32), [0] * LANES))
