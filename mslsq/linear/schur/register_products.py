"""Sums of many small products of matrices found by index, the sum in registers until it is complete.

LLVM's vectoriser leaves a 9 × 9 sum in memory and takes ten times as long; here its rows are written out as vectors
through `numba.extending.intrinsic`. Sizes travel as lengths of tuples, so a kernel is compiled once for each.
"""

from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from mslsq.linear.sparse.register_tiles import TILE, WIDE

_REGISTERS = 24 if WIDE else 12
"""Vectors of a sum that are held at a time; the others of the 32 (or 16) registers hold factors."""


def _pieces(width: int) -> list[tuple[int, int]]:
    """(first column, columns) of vectors of eight and, at the end, of 1, 2, 4 or 8."""
    rest = width % TILE
    whole = [(c, TILE) for c in range(0, width - rest, TILE)]
    return [*whole, (width - rest, 1 << (rest - 1).bit_length())] if rest else whole


@intrinsic
def _add_products(typingctx, y, left, right, first, last, rows, depth, columns, out):
    def generate(context, builder, signature, args):
        y, left, right, first, last, _, _, _, out = args
        kinds = signature.args
        height, inner, width = (kinds[k].count for k in (5, 6, 7))
        element, integer = context.get_value_type(kinds[0].dtype), first.type
        bytes_each = 8 if isinstance(element, ir.DoubleType) else 4

        def pointer(value, k):
            return context.make_array(kinds[k])(context, builder, value).data

        def constant(value):
            return ir.Constant(integer, value)

        def vectors_at(base, offset, columns):
            at = builder.gep(base, [constant(offset)])
            return builder.bitcast(at, ir.PointerType(ir.VectorType(element, columns)))

        def broadcast(value, columns):
            nothing = ir.Constant(ir.VectorType(element, columns), ir.Undefined)
            one = builder.insert_element(nothing, value, ir.Constant(ir.IntType(32), 0))
            return builder.shuffle_vector(
                one, nothing, ir.Constant(ir.VectorType(ir.IntType(32), columns), [0] * columns)
            )

        factors, lefts, rights, sums = pointer(y, 0), pointer(left, 1), pointer(right, 2), pointer(out, 8)
        pieces = _pieces(width)
        stride = TILE * -(-width // TILE)
        group = max(1, _REGISTERS // len(pieces))
        for r0 in range(0, height, group):
            rows_here = range(r0, min(height, r0 + group))
            before = builder.block
            head, inside, done = (builder.append_basic_block(name) for name in ("head", "inside", "done"))
            builder.branch(head)
            builder.position_at_end(head)
            e = builder.phi(integer)
            e.add_incoming(first, before)
            total = [builder.phi(ir.VectorType(element, columns)) for _ in rows_here for _, columns in pieces]
            for phi in total:
                phi.add_incoming(ir.Constant(phi.type, [0.0] * phi.type.count), before)
            builder.cbranch(builder.icmp_signed("<", e, last), inside, done)
            builder.position_at_end(inside)
            one = builder.gep(factors, [builder.load(builder.gep(lefts, [e]))])
            other = builder.gep(factors, [builder.load(builder.gep(rights, [e]))])
            state = list(total)
            for k in range(inner):
                row = [
                    builder.load(vectors_at(other, k * width + c, columns), align=bytes_each) for c, columns in pieces
                ]
                for n, r in enumerate(rows_here):
                    entry = builder.load(builder.gep(one, [constant(k * height + r)]))
                    for m, value in enumerate(row):
                        at = n * len(pieces) + m
                        product = builder.fmul(broadcast(entry, value.type.count), value, flags=["contract"])
                        state[at] = builder.fadd(state[at], product, flags=["contract"])
            for phi, value in zip(total, state, strict=True):
                phi.add_incoming(value, builder.block)
            e.add_incoming(builder.add(e, constant(1)), builder.block)
            builder.branch(head)
            builder.position_at_end(done)
            for n, r in enumerate(rows_here):
                for m, (c, columns) in enumerate(pieces):
                    at = vectors_at(sums, r * stride + c, columns)
                    builder.store(total[n * len(pieces) + m], at, align=bytes_each)
        return context.get_dummy_value()

    return types.void(y, left, right, first, last, rows, depth, columns, out), generate


add_products: Any = _add_products
"""out (a × b by rows, rows padded to eight) = Σ_e Y_left(e)ᵀ Y_right(e) for first <= e < last, from compiled code.

`y` is flat and holds factors k × a and k × b by rows, readable up to seven numbers beyond their end; `left` and
`right` say where each begins; a, k, b are the lengths of the tuples `rows`, `depth`, `columns`.
"""
