// Sums of many products of small blocks: they stay in registers while they grow, and lie in whole registers between.
#pragma once

#include <algorithm>
#include <vector>

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "vectors.h"

namespace mslsq {
namespace MSLSQ_TARGET {
namespace {

constexpr int WIDE = WIDTH<double>;  // numbers in a register
constexpr int MOST_PIECES = WIDE == TILE ? 2 : 3;  // registers of columns that are summed up together

constexpr i64 in_registers(i64 count) { return (count + WIDE - 1) / WIDE; }

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

// The same of a register, fewer than it has: by a mask where there are masks.
inline void subtract_front(double* to, const reg<double>& from, i64 count) {
#if defined(__AVX512F__)
    const auto mask = __mmask8((1u << count) - 1);
    _mm512_mask_storeu_pd(to, mask, _mm512_sub_pd(_mm512_maskz_loadu_pd(mask, to), from));
#else
    alignas(REGISTER_BYTES) double part[WIDE];
    store_register<WIDE>(part, from);
    subtract_part<WIDE / 2>(to, part, count);
#endif
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

// Where the factors lie, (depth, rows) and (depth, columns), and how far apart their rows are: the left one of pair e
// begins with the number of `values` that the lower half of pairs[e] says, the right one with that of the upper half.
// Where rows are closer than they are long, the last number of each stands behind all of them.
struct Factors {
    const double* values;
    const i64* pairs;
    i64 depth, left_stride, right_stride;

    i64 left(i64 e) const { return pairs[e] & 0xffffffff; }
    i64 right(i64 e) const { return pairs[e] >> 32; }
};

// to (ROWS, PIECES registers of columns from `column` on) += sum over the pairs first..last of Y_left^T Y_right, on the
// rows from `row` on; up to WIDE - 1 numbers beyond a factor are read. With ONE_MORE there is one more column, `more`; a
// register has its rows: the nine of a camera are 11 products in registers of eight instead of 18. Two pairs go together
// where the sums of one are too few to keep the multipliers busy. With registers of eight there are more loads than
// products: two of the rows' numbers are spread from a register that is loaded anyway (22 cycles a pair of 9 x 3 become
// 18).
template <int ROWS, int PIECES, bool ONE_MORE>
void add_products(const Factors& of, i64 first, i64 last, i64 row, i64 column, double* to, i64 stride, double* more) {
    constexpr int TALL = ONE_MORE ? int(in_registers(ROWS)) : 0, CHAINS = ROWS * PIECES + TALL;
    constexpr int SPREAD = WIDE == 8 && PIECES == 1 && ROWS > 2 ? 2 : 0;
    constexpr int TOGETHER = CHAINS < 8 && 2 * (CHAINS + PIECES) + 2 <= REGISTERS ? 2 : 1;
    reg<double> sums[ROWS][PIECES] = {}, last_column[TALL + 1] = {};
    const double *lefts = of.values + row, *rights = of.values + column;
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
        reg<double> second[ROWS][PIECES] = {}, second_last[TALL + 1] = {};
        for (; e + 1 < last; e += 2) {
            const double *one = lefts + of.left(e), *other = rights + of.right(e);
            const double *next = lefts + of.left(e + 1), *next_other = rights + of.right(e + 1);
            for (i64 k = 0; k < depth; k++) {
                add(one + k * by_left, other + k * by_right, sums, last_column);
                add(next + k * by_left, next_other + k * by_right, second, second_last);
            }
        }
#pragma GCC unroll 12
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 3
            for (int m = 0; m < PIECES; m++) sums[r][m] += second[r][m];
#pragma GCC unroll 6
        for (int m = 0; m < TALL; m++) last_column[m] += second_last[m];
    }
    for (; e < last; e++) {
        const double *one = lefts + of.left(e), *other = rights + of.right(e);
        for (i64 k = 0; k < depth; k++, one += by_left, other += by_right) add(one, other, sums, last_column);
    }
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 3
        for (int m = 0; m < PIECES; m++) {
            double* at = to + r * stride + m * WIDE;
            store_register<WIDE>(at, load_register<WIDE>(at) + sums[r][m]);
        }
#pragma GCC unroll 6
    for (int m = 0; m < TALL; m++)
        store_register<WIDE>(more + m * WIDE, load_register<WIDE>(more + m * WIDE) + last_column[m]);
}

using Add = void (*)(const Factors&, i64, i64, i64, i64, double*, i64, double*);

// A part of the products of blocks of TILE + 1 columns, where the last numbers of a factor's rows stand behind all of
// them: `ROWS` rows from ROW on by `PIECES` registers of columns from PIECE on; the last row of these columns; registers
// LAST..LAST_END of the last column; and the corner, one product of registers for each pair.
template <int ROW, int ROWS, int PIECE, int PIECES, bool LAST_ROW, int LAST, int LAST_END, bool CORNER>
struct Loose {
    static constexpr int TALL = LAST_END - LAST, SPREAD = WIDE == 8 ? 2 : 0;

    // DEPTH rows a factor, or as many as it says where that is zero.
    template <int DEPTH>
    static void add(const Factors& of, i64 first, i64 last, i64, i64, double* to, i64 stride, double* more) {
        reg<double> sums[ROWS + LAST_ROW][PIECES] = {}, last_column[TALL + 1] = {}, corner = {};
        const i64 depth = DEPTH ? DEPTH : of.depth;
        const double* const values = of.values;
        const auto row = [&](const double* one, const double* other, const double* one_last, const double* other_last) {
            reg<double> factor[PIECES];
#pragma GCC unroll 4
            for (int m = 0; m < PIECES; m++) factor[m] = load_register<WIDE>(other + (PIECE + m) * WIDE);
            if constexpr (SPREAD == 2) {
                const reg<double> rows = load_register<WIDE>(one + ROW);
                sums[0][0] += factor[0] * spread<0>(rows);
                sums[1][0] += factor[0] * spread<1>(rows);
            }
#pragma GCC unroll 8
            for (int r = SPREAD; r < ROWS; r++)
#pragma GCC unroll 4
                for (int m = 0; m < PIECES; m++) sums[r][m] += factor[m] * one[ROW + r];
            if constexpr (LAST_ROW)
#pragma GCC unroll 4
                for (int m = 0; m < PIECES; m++) sums[ROWS][m] += factor[m] * *one_last;
#pragma GCC unroll 4
            for (int n = 0; n < TALL; n++)
                last_column[n] += load_register<WIDE>(one + (LAST + n) * WIDE) * *other_last;
        };
        for (i64 e = first; e < last; e++) {
            const double *one = values + of.left(e), *other = values + of.right(e);
            const double *one_last = one + TILE * depth, *other_last = other + TILE * depth;
            if constexpr (CORNER)
                for (i64 k = 0; k < depth; k += WIDE)
                    corner += load_register<WIDE>(one_last + k) * load_register<WIDE>(other_last + k);
            if constexpr (DEPTH > 0) {
#pragma GCC unroll 3
                for (int k = 0; k < DEPTH; k++) row(one + k * TILE, other + k * TILE, one_last + k, other_last + k);
            } else {
                for (i64 k = 0; k < depth; k++) row(one + k * TILE, other + k * TILE, one_last + k, other_last + k);
            }
        }
#pragma GCC unroll 9
        for (int r = 0; r < ROWS + LAST_ROW; r++)
#pragma GCC unroll 4
            for (int m = 0; m < PIECES; m++) {
                double* at = to + (r < ROWS ? ROW + r : TILE) * stride + (PIECE + m) * WIDE;
                store_register<WIDE>(at, load_register<WIDE>(at) + sums[r][m]);
            }
#pragma GCC unroll 4
        for (int n = 0; n < TALL; n++) {
            double* at = more + (LAST + n) * WIDE;
            store_register<WIDE>(at, load_register<WIDE>(at) + last_column[n]);
        }
        if constexpr (CORNER)
            for (int n = 0; n < WIDE; n++) more[TILE] += corner[n];
    }

    static Add of(i64 depth) { return depth == 3 ? add<3> : add<0>; }
};

// What the products of blocks of TILE + 1 columns are made of. Where both factors are the same (a camera with itself) it
// covers the lower triangle of the sum, which is all that is read.
struct LooseParts {
    std::vector<Add> all, of_squares;

    explicit LooseParts(i64 depth) {
        constexpr int N = TILE / WIDE, H = N / 2;  // registers of a row, and half of them
        if constexpr (N == 1) {
            all = of_squares = {Loose<0, 8, 0, 1, true, 0, 1, true>::of(depth)};
        } else if constexpr (N == 2) {
            const Add below = Loose<4, 4, 0, 2, true, 0, 0, true>::of(depth);
            all = {below, Loose<0, 4, 0, 2, false, 0, 2, false>::of(depth)};
            of_squares = {below, Loose<0, 4, 0, 1, false, 0, 0, false>::of(depth)};
        } else {
            const Add left = Loose<4, 4, 0, H, true, 0, 0, true>::of(depth);
            const Add right = Loose<4, 4, H, H, true, 0, 0, false>::of(depth);
            all = {left, right, Loose<0, 4, 0, H, false, 0, H, false>::of(depth),
                   Loose<0, 4, H, H, false, H, N, false>::of(depth)};
            of_squares = {left, right, Loose<0, 4, 0, H, false, 0, 0, false>::of(depth)};
        }
    }

    // The sums of a block += those of the pairs first..last.
    void add(const Factors& of, i64 first, i64 last, double* sums, i64 stride, double* more) const {
        const bool squares = of.left(first) == of.right(first);
        for (const Add part : squares ? of_squares : all) part(of, first, last, 0, 0, sums, stride, more);
    }
};

// `add_products` for a number of rows up to `most_rows(PIECES, ONE_MORE)`.
template <int PIECES, bool ONE_MORE, int ROWS = most_rows(PIECES, ONE_MORE)>
Add add_rows(i64 rows) {
    if constexpr (ROWS > 1)
        if (rows < ROWS) return add_rows<PIECES, ONE_MORE, ROWS - 1>(rows);
    return add_products<ROWS, PIECES, ONE_MORE>;
}

template <bool ONE_MORE, int MOST = MOST_PIECES>
Add add_of(i64 rows, i64 pieces) {
    if constexpr (MOST > 2)
        if (pieces == 3) return add_rows<3, ONE_MORE>(rows);
    return pieces == 2 ? add_rows<2, ONE_MORE>(rows) : add_rows<1, ONE_MORE>(rows);
}

// `count` things in parts of at most `most`: how many are in a part, so that all parts are about equal.
inline i64 part_of(i64 count, i64 most) {
    const i64 parts = (count + most - 1) / most;
    return (count + parts - 1) / parts;
}

// A block's sums of products, in whole registers: what is summed up together, and where it is.
class Sums {
    struct Part {
        i64 row, rows, column, pieces, more;  // `more`: where the rows of one more column are, if there is one
        Add add;
    };

    i64 tail, stride;  // numbers of the last register of columns, and the distance of rows
    bool loose;
    std::vector<Part> parts;
    LooseParts loose_parts;

public:
    i64 size;

    Sums(i64 rows, i64 columns, i64 depth, bool are_loose) : loose(are_loose), loose_parts(depth) {
        const bool one_more = columns > WIDE && columns % WIDE == 1;
        const i64 registers = columns / WIDE + (!one_more && columns % WIDE), pieces = part_of(registers, MOST_PIECES);
        tail = one_more ? WIDE : columns - (registers - 1) * WIDE;
        stride = registers * WIDE;
        size = rows * stride;
        if (loose) {
            parts.push_back({0, rows, 0, registers, size, nullptr});
            size += in_registers(rows) * WIDE;
            return;
        }
        for (i64 p = 0; p < registers; p += pieces) {
            const i64 have = std::min(pieces, registers - p);
            const bool more = one_more && p + have == registers;
            const i64 together = part_of(rows, most_rows(have, more));
            for (i64 r = 0; r < rows; r += together) {
                const i64 here = std::min(together, rows - r);
                const Add add = more ? add_of<true>(here, have) : add_of<false>(here, have);
                parts.push_back({r, here, p * WIDE, have, more ? size : 0, add});
                if (more) size += in_registers(here) * WIDE;
            }
        }
    }

    // The sums of a block += those of the pairs first..last.
    void add(const Factors& of, i64 first, i64 last, double* sums) const {
        if (loose) return loose_parts.add(of, first, last, sums, stride, sums + parts[0].more);
        for (const Part& part : parts)
            part.add(of, first, last, part.row, part.column, sums + part.row * stride + part.column, stride,
                     sums + part.more);
    }

    // The sums taken off a block of a matrix whose rows are `distance` apart; they are zero afterwards.
    void take_off(double* sums, double* block, i64 distance) const {
        for (const Part& part : parts) {
            for (i64 r = part.row; r < part.row + part.rows; r++) {
                double *from = sums + r * stride + part.column, *to = block + r * distance + part.column;
                for (i64 m = 0; m < part.pieces; m++, from += WIDE, to += WIDE) {
                    const reg<double> taken = load_register<WIDE>(from);
                    const bool whole = tail == WIDE || part.column + (m + 1) * WIDE < stride;
                    store_register<WIDE>(from, reg<double>{});
                    if (whole)
                        store_register<WIDE>(to, load_register<WIDE>(to) - taken);
                    else
                        subtract_front(to, taken, tail);
                }
                if (part.more) {
                    double& taken = sums[part.more + r - part.row];
                    *to -= taken;
                    taken = 0;
                }
            }
        }
    }
};

}  // namespace
}  // namespace MSLSQ_TARGET
}  // namespace mslsq
