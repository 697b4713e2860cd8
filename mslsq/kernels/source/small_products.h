// Sums of many products of small blocks, subtracted from a block of a matrix: the sums stay in registers.
#pragma once

#include <algorithm>
#include <vector>

#include "vectors.h"

namespace mslsq {
namespace MSLSQ_TARGET {
namespace {

constexpr int WIDE = WIDTH<double>;  // numbers in a register
constexpr int MOST_PIECES = WIDE == TILE ? 2 : 3;  // registers of columns that are summed up together

constexpr int in_registers(int count) { return (count + WIDE - 1) / WIDE; }

// Rows whose sums the registers hold beside a row of the right factor and a number of the left one; with one more column
// also its sums and its number.
constexpr int most_rows(int pieces, bool one_more) {
    int rows = 12;
    while (rows > 1 && rows * pieces + (one_more ? in_registers(rows) + 1 : 0) + pieces + 1 > REGISTERS) rows--;
    return rows;
}

// to[0..count) -= the first numbers of a register.
template <int W>
inline void subtract_part(double* to, const double* from, i64 count) {
    if (count >= W) {
        store_register<W>(to, load_register<W>(to) - load_register<W>(from));
        to += W, from += W, count -= W;
    }
    if constexpr (W > 1)
        if (count) subtract_part<W / 2>(to, from, count);
}

// One number of a register in all of its places, by a shuffle where a register has eight.
template <int PLACE, class R>
inline R spread(const R& v) {
    using T = double;
    constexpr int W = sizeof(R) / sizeof(T);
    if constexpr (W == 8)
        return MSLSQ_SHUFFLE(v, v, PLACE, PLACE, PLACE, PLACE, PLACE, PLACE, PLACE, PLACE);
    else
        return v[PLACE] - R{};
}

// Where the factors lie: (depth, rows) from left[e] on, and (depth, columns) from right[e] on, in `values`, which begin
// with number `begin`; and how far apart their rows are.
struct Factors {
    const double* values;
    i64 begin;
    const i64 *left, *right;
    i64 depth, left_stride, right_stride;
};

// to (ROWS, columns from `column` on) -= sum over the pairs first..last of Y_left^T Y_right, on the rows from `row` on.
// `PIECES` registers of columns, `tail` numbers of the last one; up to WIDE - 1 numbers beyond a factor are read. With
// ONE_MORE there is one more column; a register has its rows: the nine of a camera are 11 products in registers of eight
// instead of 18. Two pairs go together where the sums of one are too few to keep the multipliers busy. With registers of
// eight there are more loads than products: two of the rows' numbers are spread from a register that is loaded anyway (22
// cycles a pair of 9 x 3 become 18).
template <int ROWS, int PIECES, bool ONE_MORE>
void subtract_products(const Factors& of, i64 first, i64 last, i64 row, i64 column, i64 tail, double* to, i64 stride) {
    constexpr int TALL = ONE_MORE ? in_registers(ROWS) : 0, CHAINS = ROWS * PIECES + TALL;
    constexpr int SPREAD = WIDE == 8 && PIECES == 1 && ROWS > 2 ? 2 : 0;
    constexpr int TOGETHER = CHAINS < 8 && 2 * (CHAINS + PIECES) + 2 <= REGISTERS ? 2 : 1;
    reg<double> sums[ROWS][PIECES] = {}, last_column[TALL + 1] = {};
    const double *lefts = of.values + row, *rights = of.values + column;
    const i64 begin = of.begin;
    const i64 depth = of.depth, by_left = of.left_stride, by_right = of.right_stride;
    const auto add = [&](const double* one, const double* other, auto& own, auto& own_last) {
        reg<double> factor[PIECES];
#pragma GCC unroll 3
        for (int m = 0; m < PIECES; m++) factor[m] = load_register<WIDE>(other + m * WIDE);
        if constexpr (SPREAD == 2) {
            const reg<double> rows = load_register<WIDE>(one);
            own[0][0] += factor[0] * spread<0>(rows);
            own[1][0] += factor[0] * spread<1>(rows);
        }
#pragma GCC unroll 12
        for (int r = SPREAD; r < ROWS; r++)
#pragma GCC unroll 3
            for (int m = 0; m < PIECES; m++) own[r][m] += factor[m] * one[r];
#pragma GCC unroll 6
        for (int m = 0; m < TALL; m++) own_last[m] += load_register<WIDE>(one + m * WIDE) * other[PIECES * WIDE];
    };
    i64 e = first;
    if constexpr (TOGETHER == 2) {
        reg<double> more[ROWS][PIECES] = {}, more_last[TALL + 1] = {};
        for (; e + 1 < last; e += 2) {
            const double *one = lefts + (of.left[e] - begin), *other = rights + (of.right[e] - begin);
            const double *next = lefts + (of.left[e + 1] - begin), *next_other = rights + (of.right[e + 1] - begin);
            for (i64 k = 0; k < depth; k++) {
                add(one + k * by_left, other + k * by_right, sums, last_column);
                add(next + k * by_left, next_other + k * by_right, more, more_last);
            }
        }
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 3
            for (int m = 0; m < PIECES; m++) sums[r][m] += more[r][m];
#pragma GCC unroll 6
        for (int m = 0; m < TALL; m++) last_column[m] += more_last[m];
    }
    for (; e < last; e++) {
        const double *one = lefts + (of.left[e] - begin), *other = rights + (of.right[e] - begin);
        for (i64 k = 0; k < depth; k++, one += by_left, other += by_right) add(one, other, sums, last_column);
    }
    alignas(REGISTER_BYTES) double numbers[(TALL + 1) * WIDE];
    if constexpr (ONE_MORE) {
#pragma GCC unroll 6
        for (int m = 0; m < TALL; m++) store_register<WIDE>(numbers + m * WIDE, last_column[m]);
    }
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) {
        double* at = to + r * stride;
#pragma GCC unroll 3
        for (int m = 0; m < PIECES; m++, at += WIDE) {
            if (m + 1 < PIECES || tail == WIDE) {
                store_register<WIDE>(at, load_register<WIDE>(at) - sums[r][m]);
            } else {
                alignas(REGISTER_BYTES) double part[WIDE];
                store_register<WIDE>(part, sums[r][m]);
                subtract_part<WIDE / 2>(at, part, tail);
            }
        }
        if (ONE_MORE) *at -= numbers[r];
    }
}

using Subtract = void (*)(const Factors&, i64, i64, i64, i64, i64, double*, i64);

// `subtract_products` for a number of rows up to `most_rows(PIECES, ONE_MORE)`.
template <int PIECES, bool ONE_MORE, int ROWS = most_rows(PIECES, ONE_MORE)>
Subtract subtract_rows(i64 rows) {
    if constexpr (ROWS > 1)
        if (rows < ROWS) return subtract_rows<PIECES, ONE_MORE, ROWS - 1>(rows);
    return subtract_products<ROWS, PIECES, ONE_MORE>;
}

template <bool ONE_MORE>
Subtract subtract_of(i64 rows, i64 pieces) {
    if constexpr (MOST_PIECES > 2)
        if (pieces == 3) return subtract_rows<3, ONE_MORE>(rows);
    return pieces == 2 ? subtract_rows<2, ONE_MORE>(rows) : subtract_rows<1, ONE_MORE>(rows);
}

// `count` things in parts of at most `most`: how many are in a part, so that all parts are about equal.
inline i64 part_of(i64 count, i64 most) {
    const i64 parts = (count + most - 1) / most;
    return (count + parts - 1) / parts;
}

// Rows and columns that are summed up together, and the code for them.
struct Part {
    i64 row, column, tail;
    Subtract subtract;
};

inline std::vector<Part> parts_of(i64 rows, i64 columns) {
    const bool one_more = columns > WIDE && columns % WIDE == 1;
    const i64 registers = columns / WIDE + (!one_more && columns % WIDE), pieces = part_of(registers, MOST_PIECES);
    std::vector<Part> parts;
    for (i64 p = 0; p < registers; p += pieces) {
        const i64 have = std::min(pieces, registers - p);
        const bool ends = p + have == registers, more = one_more && ends;
        const i64 tail = ends && !more ? columns - (registers - 1) * WIDE : WIDE;
        const i64 together = part_of(rows, most_rows(have, more));
        for (i64 r = 0; r < rows; r += together) {
            const i64 here = std::min(together, rows - r);
            parts.push_back({r, p * WIDE, tail, more ? subtract_of<true>(here, have) : subtract_of<false>(here, have)});
        }
    }
    return parts;
}

// Block t, first <= t < last: matrix (rows, columns) at target[t] -= the sum of its pairs start[t]..start[t + 1].
inline void subtract_pairs(const Factors& of, const std::vector<Part>& parts, i64 first, i64 last, const i64* start,
                           const i64* target, const i64* stride, double* matrix) {
    for (i64 t = first; t < last; t++)
        for (const Part& part : parts)
            part.subtract(of, start[t], start[t + 1], part.row, part.column, part.tail,
                          matrix + target[t] + part.row * stride[t] + part.column, stride[t]);
}

}  // namespace
}  // namespace MSLSQ_TARGET
}  // namespace mslsq
