"""The three inner loops of `numba_likelihood`, a block of 16 neighbors along a row at a time.

All arrays are one-dimensional; `at` is the position of the block's first number. Each block is independent of the
others, so that a row is a few calls in a plain loop.
"""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic

from scripts.gaussian.backends.lanes import F32, F64, I32, emitted


@intrinsic
def warp_block(  # type: ignore[no-untyped-def]
    typing_context, plane, at0, at1, at2, at3, channel, weights, phase, pairs, base, sx, sy, reach, last_z, k, out, at
):
    """Displace 16 voxels of a row and look them up in the moving image.

    u_c = Σ_t weights[phase + t] · plane[c · channel + at_t …]: the spline along y of rows that are finished along x and
    z. The place i + u is kept inside of the image by keeping u between −i and size − 1 − i, which are exact in float32,
    and u is split into a whole and a fractional part: the place has the precision of u itself, not that of i + u.

    Args:
        plane, at0 … at3, channel: float32 rows of the three channels, `channel` numbers apart.
        weights, phase: float32, four of a phase.
        pairs: int64, each the float32 of a voxel and of its successor along z.
        base, sx, sy: int32, position in pairs of the block's first voxel, and the strides of x and y.
        reach: four float32, −i, X − 1 − i, −j, Y − 1 − j.
        last_z, k: Z − 1 and the first voxel's index along z, float32.
        out, at: float32, where the warped intensities go.
    """
    arguments = (plane, at0, at1, at2, at3, channel, weights, phase, pairs, base, sx, sy, reach, last_z, k, out, at)
    signature = types.void(*arguments)

    def emit(block, args):  # type: ignore[no-untyped-def]
        rows = [block.data(0, args[t]) for t in (1, 2, 3, 4)]
        weight = [block.fill(block.number(block.data(6, args[7]), t)) for t in range(4)]
        limits = block.data(12)
        along_z = block.counting(F32) + block.fill(args[14])
        low = [block.fill(block.number(limits, 0)), block.fill(block.number(limits, 2)), along_z * -1.0]
        high = [block.fill(block.number(limits, 1)), block.fill(block.number(limits, 3))]
        high.append(block.fill(args[13]) - along_z)

        whole, fraction = [], []
        for c, shift in enumerate(block.multiples(args[5], 3)):
            u = block.load(rows[0], shift) * weight[0]
            for t in (1, 2, 3):
                u = block.load(rows[t], shift).times_plus(weight[t], u)
            u = u.at_least(low[c]).at_most(high[c])
            floor = u.floor()
            whole.append(floor.to(I32))
            fraction.append(u - floor)

        stride_x, stride_y = block.fill(args[10]), block.fill(args[11])
        position = block.counting(I32) + block.fill(args[9]) + whole[2]
        position = position + whole[0] * stride_x + whole[1] * stride_y

        def between(first, second, part):  # type: ignore[no-untyped-def]
            return (second - first).times_plus(part, first)

        def along(corner):  # type: ignore[no-untyped-def]
            first, second = block.gather(block.data(8), corner).halves()
            return between(first, second, fraction[2])

        upper = position + stride_x
        near = between(along(position), along(position + stride_y), fraction[1])
        far = between(along(upper), along(upper + stride_y), fraction[1])
        block.store(between(near, far, fraction[0]), block.data(15, args[16]))

    return emitted(signature, emit)


@intrinsic
def slide_block(  # type: ignore[no-untyped-def]
    typing_context, row, k, ring, ring_at, fixed, enters, leaves, sums, here, behind, channel, window, at, stride
):
    """Move the windows of 16 columns by one plane along x and by one row along y.

    With m entering, o leaving (what the ring has in m's place) and f the fixed image, the sums along x become
    s += (m, m², f·m) − (o, o², f'·o), and those along x and y, t += s − s', with s' the row that leaves.

    Args:
        row, k: float32, the intensities m that enter.
        ring, ring_at: float32, those that leave; m is put in their place.
        fixed, enters, leaves: float32, f at both.
        sums, here, behind, channel: float64, s and s', three sums `channel` numbers apart.
        window, at, stride: float64, t, three sums `stride` numbers apart.
    """
    arguments = (row, k, ring, ring_at, fixed, enters, leaves, sums, here, behind, channel, window, at, stride)
    signature = types.void(*arguments)

    def emit(block, args):  # type: ignore[no-untyped-def]
        place = block.data(2, args[3])
        entering, leaving = block.load(block.data(0, args[1])), block.load(place)
        block.store(entering, place)
        m, o = entering.to(F64), leaving.to(F64)
        f_in, f_out = (block.load(block.data(4, args[a])).to(F64) for a in (5, 6))
        negative = o * -1.0
        here, behind = block.data(7, args[8]), block.data(7, args[9])
        target = block.data(11, args[12])
        shifts, steps = (block.multiples(args[a], 3) for a in (10, 13))
        for c, (shift, step) in enumerate(zip(shifts, steps, strict=True)):
            s = block.load(here, shift)
            if c == 0:
                s = s + (m - o)
            else:
                s = negative.times_plus(o if c == 1 else f_out, m.times_plus(m if c == 1 else f_in, s))
            block.store(s, here, shift)
            block.store(block.load(target, step) + (s - block.load(behind, shift)), target, step)

    return emitted(signature, emit)


@intrinsic
def correlate_block(  # type: ignore[no-untyped-def]
    typing_context, window, at, stride, size, share, shares, k, mean, weight, voxel, eps, totals
):
    """Sum the windows of 16 voxels along z and add their weighted squared correlations to the totals.

    With S the three sums and n the window's voxels: mean m̄ = S₀/n, variance S₁/n − m̄², covariance S₂/n − m̄ f̄, and
    totals += weight · covariance² / (variance + ε). Differences are taken in float64, only the quotient is float32.

    Args:
        window, at, stride, size: float64, sums along x and y of the window's first column, and its columns.
        share, shares, k: float64, 1/n of the window's extent along x and y, and along z for every k.
        mean, weight, voxel: f̄ (float64) and 1/(σ² (var f + ε)), times the mask (float32), at the block's first voxel.
        eps: ε, float32.
        totals: float64, a total for every k.
    """
    signature = types.void(window, at, stride, size, share, shares, k, mean, weight, voxel, eps, totals)

    def emit(block, args):  # type: ignore[no-untyped-def]
        columns = [block.builder.gep(block.data(0, args[1]), [shift]) for shift in block.multiples(args[2], 3)]

        def add(d, sums):  # type: ignore[no-untyped-def]
            return [total + block.load(column, d) for total, column in zip(sums, columns, strict=True)]

        sums = block.sums([block.load(column) * 0.0 for column in columns], args[3], add)
        k = args[6]
        part = block.fill(args[4]) * block.load(block.data(5, k))
        m_mean = sums[0] * part
        negative = m_mean * -1.0
        variance = negative.times_plus(m_mean, sums[1] * part).to(F32).at_least(0.0)
        mean = block.load(block.data(7, args[9]))
        covariance = negative.times_plus(mean, sums[2] * part).to(F32)
        weight = block.load(block.data(8, args[9]))
        ncc = covariance * covariance * weight / (variance + block.fill(args[10]))
        totals = block.data(11, k)
        block.store(block.load(totals) + ncc.to(F64), totals)

    return emitted(signature, emit)
