"""The dense kernels: C -= A Bᵀ on a tile that stays in registers, and eight columns times a vector, either way.

LLVM's vectoriser does not keep a tile of C in registers by itself, so the vectors are written out through
`numba.extending.intrinsic`: the code is LLVM's portable vector type, split as the processor demands.
"""

import os
from typing import Any

from llvmlite import binding, ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

TILE = 8  # columns of a tile, and what rows and columns of fronts are padded to

# numba's own setting first: NUMBA_CPU_FEATURES compiles for another processor than this one
WIDE = "+avx512f" in (os.environ.get("NUMBA_CPU_FEATURES") or binding.get_host_cpu_features().flatten())


class _Writer:
    """LLVM instructions on vectors of eight numbers of one type."""

    def __init__(self, context, builder, element, index):
        self.context, self.builder, self.element, self.index = context, builder, element, index
        self.vector = ir.VectorType(element, TILE)
        self.align = 8 if isinstance(element, ir.DoubleType) else 4

    def constant(self, value):
        return ir.Constant(self.index, value)

    def start(self, kind, array, offset):
        """Pointer to array[offset]."""
        return self.builder.gep(self.context.make_array(kind)(self.context, self.builder, array).data, [offset])

    def at(self, pointer, *offsets):
        for offset in offsets:
            pointer = self.builder.gep(pointer, [offset if isinstance(offset, ir.Value) else self.constant(offset)])
        return pointer

    def times(self, count, stride):
        return self.builder.mul(self.constant(count), stride)

    def load(self, pointer):
        return self.builder.load(self.builder.bitcast(pointer, ir.PointerType(self.vector)), align=self.align)

    def store(self, value, pointer):
        self.builder.store(value, self.builder.bitcast(pointer, ir.PointerType(self.vector)), align=self.align)

    def broadcast(self, pointer):
        nothing = ir.Constant(self.vector, ir.Undefined)
        one = self.builder.insert_element(nothing, self.builder.load(pointer), ir.Constant(ir.IntType(32), 0))
        return self.builder.shuffle_vector(one, nothing, ir.Constant(ir.VectorType(ir.IntType(32), TILE), [0] * TILE))

    def subtract(self, value, left, right):
        """value - left right, as one fused operation where there is one."""
        product = self.builder.fmul(left, right, flags=["contract"])
        return self.builder.fsub(value, product, flags=["contract"])

    def loop(self, count, step, state, body):
        """body(p, state) -> state for p = 0, step, ... < count; the state after the last."""
        builder = self.builder
        before = builder.block
        head, inside, done = (builder.append_basic_block(name) for name in ("head", "inside", "done"))
        builder.branch(head)
        builder.position_at_end(head)
        p = builder.phi(self.index)
        p.add_incoming(self.constant(0), before)
        phis = [builder.phi(self.vector) for _ in state]
        for phi, value in zip(phis, state, strict=True):
            phi.add_incoming(value, before)
        builder.cbranch(builder.icmp_signed("<", p, count), inside, done)
        builder.position_at_end(inside)
        for phi, value in zip(phis, body(p, phis), strict=True):
            phi.add_incoming(value, builder.block)
        p.add_incoming(builder.add(p, self.constant(step)), builder.block)
        builder.branch(head)
        builder.position_at_end(done)
        return phis


def _tile(vectors, solve) -> Any:  # called inside compiled code without its first argument
    """An intrinsic for a tile of 8 * vectors rows and 8 columns."""

    @intrinsic
    def tile(typingctx, x, a, lda, y, b, bp, bj, z, c, ldc, depth, d, ldd, inverse):
        return types.void(x, lda, lda, y, lda, lda, lda, z, lda, lda, lda, lda, lda, inverse), generate

    def generate(context, builder, signature, args):
        x, a, lda, y, b, bp, bj, z, c, ldc, depth, d, ldd, inverse = args
        w = _Writer(context, builder, context.get_value_type(signature.args[0].dtype), depth.type)
        A, B = w.start(signature.args[0], x, a), w.start(signature.args[3], y, b)
        C = w.start(signature.args[7], z, c)
        target = [[w.at(C, w.times(j, ldc), v * TILE) for v in range(vectors)] for j in range(TILE)]
        tile = []
        # with 16 registers of half the width only half the columns fit
        group = TILE if WIDE else TILE // 2
        for g in range(0, TILE, group):
            offsets = [w.times(j, bj) for j in range(g, g + group)]

            def product(p, state, offsets=offsets):
                left_at, right_at = w.at(A, builder.mul(p, lda)), w.at(B, builder.mul(p, bp))
                left = [w.load(w.at(left_at, v * TILE)) for v in range(vectors)]
                right = [w.broadcast(w.at(right_at, offset)) for offset in offsets]
                return [w.subtract(state[k], left[k % vectors], right[k // vectors]) for k in range(len(state))]

            state = w.loop(depth, 1, [w.load(t) for column in target[g : g + group] for t in column], product)
            tile += [state[k : k + vectors] for k in range(0, len(state), vectors)]
            if not solve:
                for k, value in enumerate(state):
                    w.store(value, target[g + k // vectors][k % vectors])
        if solve:
            D, scale = w.start(signature.args[7], z, d), w.start(signature.args[13], inverse, w.constant(0))
            for j in range(TILE):
                for q in range(j):
                    entry = w.broadcast(w.at(D, w.times(q, ldd), j))
                    tile[j] = [w.subtract(value, left, entry) for value, left in zip(tile[j], tile[q], strict=True)]
                entry = w.broadcast(w.at(scale, j))
                tile[j] = [builder.fmul(value, entry) for value in tile[j]]
                for value, at in zip(tile[j], target[j], strict=True):
                    w.store(value, at)
        return context.get_dummy_value()

    return tile


@intrinsic
def _columns(typingctx, x, a, lda, y, b, z, c, rows):
    def generate(context, builder, signature, args):
        x, a, lda, y, b, z, c, rows = args
        w = _Writer(context, builder, context.get_value_type(signature.args[0].dtype), rows.type)
        A, B = w.start(signature.args[0], x, a), w.start(signature.args[3], y, b)
        C = w.start(signature.args[5], z, c)
        factors = [w.broadcast(w.at(B, j)) for j in range(TILE)]
        columns = [w.at(A, w.times(j, lda)) for j in range(TILE)]

        def body(i, state):
            even, odd = w.load(w.at(C, i)), ir.Constant(w.vector, [0.0] * TILE)  # two chains: half the latency
            for j in range(0, TILE, 2):
                even = w.subtract(even, w.load(w.at(columns[j], i)), factors[j])
                odd = w.subtract(odd, w.load(w.at(columns[j + 1], i)), factors[j + 1])
            w.store(builder.fadd(even, odd), w.at(C, i))
            return state

        w.loop(rows, TILE, [], body)
        return context.get_dummy_value()

    return types.void(x, lda, lda, y, lda, z, lda, lda), generate


@intrinsic
def _dots(typingctx, x, a, lda, y, b, z, c, rows):
    def generate(context, builder, signature, args):
        x, a, lda, y, b, z, c, rows = args
        w = _Writer(context, builder, context.get_value_type(signature.args[0].dtype), rows.type)
        A, B = w.start(signature.args[0], x, a), w.start(signature.args[3], y, b)
        C = w.start(signature.args[5], z, c)
        columns = [w.at(A, w.times(j, lda)) for j in range(TILE)]

        def body(i, state):
            right = w.load(w.at(B, i))
            return [w.subtract(s, w.load(w.at(columns[j], i)), right) for j, s in enumerate(state)]

        sums = w.loop(rows, TILE, [ir.Constant(w.vector, [0.0] * TILE)] * TILE, body)
        kind = ir.FunctionType(w.element, [w.element, w.vector])
        name = "llvm.vector.reduce.fadd.v8" + ("f64" if isinstance(w.element, ir.DoubleType) else "f32")
        reduce = cgutils.get_or_insert_function(builder.module, kind, name)
        for j, total in enumerate(sums):
            at = w.at(C, j)
            builder.store(builder.call(reduce, [builder.load(at), total], fastmath=["reassoc"]), at)
        return context.get_dummy_value()

    return types.void(x, lda, lda, y, lda, z, lda, lda), generate


_subtract_eight_columns: Any = _columns
_subtract_eight_dots: Any = _dots
_TALL = 3 if WIDE else 1
_update_tall, _update_one = _tile(_TALL, False), _tile(1, False)
_solve_tall, _solve_one = _tile(_TALL, True), _tile(1, True)


@njit(cache=True, nogil=True)
def subtract_product(x, a, lda, y, b, bp, bj, z, c, ldc, rows, depth):
    """C (rows, 8) -= A (rows, depth) B (8, depth)ᵀ; A, C by columns, B[j, p] at b + p bp + j bj, 8 | rows."""
    i = 0
    while i + _TALL * TILE <= rows:
        _update_tall(x, a + i, lda, y, b, bp, bj, z, c + i, ldc, depth, c, ldc, x)
        i += _TALL * TILE
    while i < rows:
        _update_one(x, a + i, lda, y, b, bp, bj, z, c + i, ldc, depth, c, ldc, x)
        i += TILE


@njit(cache=True, nogil=True)
def subtract_product_and_solve(x, a, ld, b, c, rows, depth, d, inverse):
    """C (rows, 8) <- (C - A Bᵀ) D⁻ᵀ inside one panel x of leading dimension ld; `inverse` is 1 / D_jj."""
    i = 0
    while i + _TALL * TILE <= rows:
        _solve_tall(x, a + i, ld, x, b, ld, 1, x, c + i, ld, depth, d, ld, inverse)
        i += _TALL * TILE
    while i < rows:
        _solve_one(x, a + i, ld, x, b, ld, 1, x, c + i, ld, depth, d, ld, inverse)
        i += TILE


@njit(cache=True, nogil=True)
def subtract_eight_columns(x, a, lda, y, b, z, c, rows):
    """z[c : c + rows] -= A (rows, 8) y[b : b + 8], 8 | rows."""
    _subtract_eight_columns(x, a, lda, y, b, z, c, rows)


@njit(cache=True, nogil=True)
def subtract_eight_dots(x, a, lda, y, b, z, c, rows):
    """z[c : c + 8] -= A (rows, 8)ᵀ y[b : b + rows], 8 | rows."""
    _subtract_eight_dots(x, a, lda, y, b, z, c, rows)
