// Large fronts, which no longer fit in the second cache: 64 columns at a time, copied into groups of rows.
//
// A group has as many rows as three tiles of eight, by columns, one group after the other. The columns of a block are
// factored there, and their products are taken off everything to their right from there: a part of a group stays in the
// first cache, and none of it steps over a page of memory for every column (Goto and van de Geijn 2008). Each number sees
// the same operations in the same order as in a small front, so the results are the same to the bit.
#pragma once

#include <algorithm>

#include "tiles.h"

namespace mslsq {
namespace MSLSQ_TARGET {
namespace {

constexpr i64 BLOCK = 64;  // columns

// Numbers of a panel from which on this is faster: with 512 columns of 512 rows, in either type.
constexpr i64 LARGE = i64{1} << 18;

template <class T>
struct Groups {
    static constexpr i64 ROWS = 3 * (FULL<T> > TILE ? FULL<T> : TILE);

    T* numbers;
    i64 rows;  // of all groups, the diagonal of the block among them

    static i64 room(i64 rows) { return (rows + ROWS - 1) / ROWS * ROWS * BLOCK; }

    T* at(i64 row, i64 column = 0) const { return numbers + row / ROWS * ROWS * BLOCK + row % ROWS + column * ROWS; }

    // f(row, count): the rows from `first` on, as many at a time as are in one group.
    template <class F>
    void each(i64 first, F f) const {
        for (i64 row = first, have; row < rows; row += have) f(row, have = std::min(ROWS - row % ROWS, rows - row));
    }

    // The lower triangle of a block of columns, and what is below it, out of a panel or (BACK) into it.
    template <bool BACK>
    void copy(T* panel, i64 ld, i64 columns) const {
        each(0, [&](i64 row, i64 have) {
            for (i64 j = 0; j < columns && j < row + have; j++) {
                T *from = panel + j * ld + row, *to = at(row, j);
                for (i64 i = std::max(j - row, i64{0}) / TILE * TILE; i < have; i += TILE)
                    BACK ? store(from + i, load(to + i)) : store(to + i, load(from + i));
            }
        });
    }

    // The block's Cholesky factor, in place; false at a pivot that is not positive and finite.
    bool factor(i64 columns) const {
        T inverse[TILE];
        for (i64 j = 0; j < columns; j += TILE) {
            const T* left = at(j);
            T* diagonal = at(j, j);
            subtract_eight_rows(left, ROWS, left, ROWS, 1, diagonal, ROWS, j);
            if (!factor_diagonal(diagonal, ROWS, inverse)) return false;
            each(j + TILE, [&](i64 row, i64 have) {
                subtract_product_and_solve(at(row), ROWS, left, at(row, j), have, j, diagonal, inverse);
            });
        }
        return true;
    }

    // C -= A A^T on the lower triangle of the columns first..last, A the first `depth` columns; C by columns, its diagonal
    // number of row `first` first.
    template <bool FRESH>
    void subtract_from(T* C, i64 ldc, i64 first, i64 last, i64 depth) const {
        for (i64 j = first; j < last; j += TILE)
            each(j, [&](i64 row, i64 have) {
                T* to = C + (j - first) * ldc + row - first;
                subtract_product<FRESH>(at(row), ROWS, at(j), ROWS, 1, to, ldc, have, depth);
            });
    }
};

// A front of `padded` columns, the first `width` of them its own, and `below` rows under them: its panel is factored, and
// minus the product of the rows below with themselves is written into `update`.
template <class T>
bool factor_large(T* panel, i64 ld, i64 padded, i64 width, i64 below, T* update, i64 update_ld, T* room) {
    for (i64 b = 0; b < padded; b += BLOCK) {
        const Groups<T> groups{room, padded + below - b};
        const i64 columns = std::min(BLOCK, padded - b), own = std::min(BLOCK, width - b), end = padded - b;
        T* block = panel + b * (ld + 1);
        groups.template copy<false>(block, ld, columns);
        if (!groups.factor(columns)) return false;
        groups.template copy<true>(block, ld, columns);
        groups.template subtract_from<false>(block + columns * (ld + 1), ld, columns, end, columns);
        if (b)
            groups.template subtract_from<false>(update, update_ld, end, groups.rows, own);
        else
            groups.template subtract_from<true>(update, update_ld, end, groups.rows, own);
    }
    return true;
}

}  // namespace
}  // namespace MSLSQ_TARGET
}  // namespace mslsq
