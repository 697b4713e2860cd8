"""The one dense kernel: C -= A Bᵀ on a tile that stays in registers, optionally followed by a triangular solve.

LLVM's vectoriser does not keep a tile of C in registers by itself, so the vectors are written out through
`numba.extending.intrinsic`: the code is LLVM's portable vector type, split as the processor demands.
"""

from llvmlite import binding, ir
from numba import njit, types
from numba.extending import intrinsic

TILE = 8  # columns of a tile, and what rows and columns of fronts are padded to

_WIDE = "avx512f" in (f for f, on in binding.get_host_cpu_features().items() if on)


def _emit(vectors, solve):
    """An intrinsic for a tile of 8 * vectors rows and 8 columns."""

    @intrinsic
    def tile(typingctx, x, a, lda, y, b, bp, bj, z, c, ldc, depth, d, ldd, inverse):
        signature = types.void(x, lda, lda, y, lda, lda, lda, z, lda, lda, lda, lda, lda, inverse)
        return signature, generate

    def generate(context, builder, signature, args):
        x, a, lda, y, b, bp, bj, z, c, ldc, depth, d, ldd, inverse = args
        element = context.get_value_type(signature.args[0].dtype)
        index = depth.type
        vector = ir.VectorType(element, TILE)
        pointer = ir.PointerType(vector)
        align = 8 if isinstance(element, ir.DoubleType) else 4

        def data(kind, value):
            return context.make_array(kind)(context, builder, value).data

        A = builder.gep(data(signature.args[0], x), [a])
        B = builder.gep(data(signature.args[3], y), [b])
        C = builder.gep(data(signature.args[7], z), [c])

        def constant(value):
            return ir.Constant(index, value)

        def vector_load(at):
            return builder.load(builder.bitcast(at, pointer), align=align)

        def broadcast(at):
            one = builder.insert_element(
                ir.Constant(vector, ir.Undefined), builder.load(at), ir.Constant(ir.IntType(32), 0)
            )
            mask = ir.Constant(ir.VectorType(ir.IntType(32), TILE), [0] * TILE)
            return builder.shuffle_vector(one, ir.Constant(vector, ir.Undefined), mask)

        def subtract(value, left, right):
            return builder.fsub(value, builder.fmul(left, right, flags=["contract"]), flags=["contract"])

        at = []
        for j in range(TILE):
            column = builder.gep(C, [builder.mul(constant(j), ldc)])
            at.append([builder.gep(column, [constant(v * TILE)]) for v in range(vectors)])
        tile = [[None] * vectors for _ in range(TILE)]
        # with 16 registers of half the width only half the columns fit
        group = TILE if _WIDE else TILE // 2
        for g in range(0, TILE, group):
            columns = range(g, g + group)
            initial = {(j, v): vector_load(at[j][v]) for j in columns for v in range(vectors)}
            offsets = {j: builder.mul(constant(j), bj) for j in columns}
            before = builder.block
            head = builder.append_basic_block("depth")
            body = builder.append_basic_block("product")
            done = builder.append_basic_block("done")
            builder.branch(head)
            builder.position_at_end(head)
            p = builder.phi(index)
            p.add_incoming(constant(0), before)
            state = {}
            for key, value in initial.items():
                state[key] = builder.phi(vector)
                state[key].add_incoming(value, before)
            builder.cbranch(builder.icmp_signed("<", p, depth), body, done)
            builder.position_at_end(body)
            left_at = builder.gep(A, [builder.mul(p, lda)])
            left = [vector_load(builder.gep(left_at, [constant(v * TILE)])) for v in range(vectors)]
            right_at = builder.gep(B, [builder.mul(p, bp)])
            for j in columns:
                right = broadcast(builder.gep(right_at, [offsets[j]]))
                for v in range(vectors):
                    state[j, v].add_incoming(subtract(state[j, v], left[v], right), body)
            p.add_incoming(builder.add(p, constant(1)), body)
            builder.branch(head)
            builder.position_at_end(done)
            for j in columns:
                for v in range(vectors):
                    tile[j][v] = state[j, v]
            if not solve:
                for j in columns:
                    for v in range(vectors):
                        builder.store(tile[j][v], builder.bitcast(at[j][v], pointer), align=align)
        if solve:
            D = builder.gep(data(signature.args[7], z), [d])
            I = data(signature.args[13], inverse)
            for j in range(TILE):
                for q in range(j):
                    factor = broadcast(builder.gep(D, [builder.add(builder.mul(constant(q), ldd), constant(j))]))
                    for v in range(vectors):
                        tile[j][v] = subtract(tile[j][v], tile[q][v], factor)
                factor = broadcast(builder.gep(I, [constant(j)]))
                for v in range(vectors):
                    tile[j][v] = builder.fmul(tile[j][v], factor)
                    builder.store(tile[j][v], builder.bitcast(at[j][v], pointer), align=align)
        return context.get_dummy_value()

    return tile


_update_3, _update_1 = _emit(3 if _WIDE else 1, False), _emit(1, False)
_solve_3, _solve_1 = _emit(3 if _WIDE else 1, True), _emit(1, True)
_TALL = 3 * TILE if _WIDE else TILE


@njit(cache=True, nogil=True)
def subtract_product(x, a, lda, y, b, bp, bj, z, c, ldc, rows, depth):
    """C (rows, 8) -= A (rows, depth) B (8, depth)ᵀ; A, C by columns, B[j, p] at b + p bp + j bj, 8 | rows."""
    i = 0
    while i + _TALL <= rows:
        _update_3(x, a + i, lda, y, b, bp, bj, z, c + i, ldc, depth, c, ldc, x)
        i += _TALL
    while i < rows:
        _update_1(x, a + i, lda, y, b, bp, bj, z, c + i, ldc, depth, c, ldc, x)
        i += TILE


@njit(cache=True, nogil=True)
def subtract_product_and_solve(x, a, ld, b, c, rows, depth, d, inverse):
    """C (rows, 8) <- (C - A Bᵀ) D⁻ᵀ inside one panel x of leading dimension ld; `inverse` is 1 / D_jj."""
    i = 0
    while i + _TALL <= rows:
        _solve_3(x, a + i, ld, x, b, ld, 1, x, c + i, ld, depth, d, ld, inverse)
        i += _TALL
    while i < rows:
        _solve_1(x, a + i, ld, x, b, ld, 1, x, c + i, ld, depth, d, ld, inverse)
        i += TILE
