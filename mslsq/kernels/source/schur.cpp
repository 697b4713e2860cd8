// The elimination of small blocks: factor them, carry them over to the kept blocks, and back again.
//
// All work is in float64, whatever the matrix is: in float32 the difference U - Y Y^T loses what the points leave of the
// cameras. Every array has the batch first; entries that are not `regular` are left alone. The plan is made by
// mslsq/linear/schur/plan.py, which names the parts: V = L L^T, Y = W L^-T.

#include <vector>

#include "export.h"
#include "sizes.h"

namespace mslsq {
namespace MSLSQ_TARGET {
namespace {

template <class T, class K>
bool factor_pivot(const T* V, const T* shift, const T* rhs, double* L, double* carried, K k) {
    for (i64 j = 0; j < k; j++)
        for (i64 i = j; i < k; i++) {
            double value = V[i * k + j];
            if (i == j && shift) value += shift[j];
            for (i64 q = 0; q < j; q++) value -= L[i * k + q] * L[j * k + q];
            if (i == j) {
                if (!(value > 0 && value <= std::numeric_limits<double>::max())) return false;
                L[j * k + j] = 1 / std::sqrt(value);  // of the diagonal only its inverse is ever used
            } else {
                L[i * k + j] = value * L[j * k + j];
            }
        }
    for (i64 j = 0; j < k; j++) {
        double value = rhs[j];
        for (i64 q = 0; q < j; q++) value -= L[j * k + q] * carried[q];
        carried[j] = value * L[j * k + j];
    }
    return true;
}

// V + shift = L L^T and L^-1 c of every eliminated block; not `regular` with a pivot that is not positive.
template <class T>
void factor_pivots(i64 batch, const T* values, i64 num_values, const T* shift, i64 shifts, const T* rhs, i64 unknowns,
                   double* work, i64 work_size, double* carried, i64 eliminated, bool* regular, i64 count,
                   const i64* source, const i64* column, const i64* triangle, const i64* right, i64 depth) {
    with_size<1, 2, 3, 4, 6>(depth, [&](auto k) {
        for (i64 b = 0; b < batch; b++)
            for (i64 p = 0; p < count && regular[b]; p++)
                regular[b] = factor_pivot(values + b * num_values + source[p],
                                          shifts ? shift + b * shifts + column[p] : nullptr,
                                          rhs + b * unknowns + column[p], work + b * work_size + triangle[p],
                                          carried + b * eliminated + right[p], k);
    });
}

// One edge of `carry_over`. What is written lies nowhere in what is read: the loops over the rows become vectors.
template <class T, class Distance, class K, class A>
void carry_edge(const T* __restrict source, i64 by_row, Distance by_column, const double* __restrict L,
                const double* __restrict c, double* __restrict Y, double* __restrict R, K k, A rows) {
    for (i64 j = 0; j < k; j++) {
        for (i64 r = 0; r < rows; r++) Y[j * rows + r] = source[j * by_row + r * by_column];
        for (i64 q = 0; q < j; q++)
            for (i64 r = 0; r < rows; r++) Y[j * rows + r] -= L[j * k + q] * Y[q * rows + r];
        for (i64 r = 0; r < rows; r++) Y[j * rows + r] *= L[j * k + j];
    }
    for (i64 j = 0; j < k; j++)
        for (i64 r = 0; r < rows; r++) R[r] -= Y[j * rows + r] * c[j];
}

// Y^T = L^-1 W^T of every edge, and b - Y L^-1 c. Entry (j, r) of W^T is at source + j by_row + r by_column.
template <class T>
void carry_over(i64 batch, const T* values, i64 num_values, double* work, i64 work_size, const double* carried,
                i64 eliminated, double* reduced_rhs, i64 reduced, const bool* regular, i64 by_row, i64 by_column,
                i64 count, const i64* source, const i64* triangle, const i64* right, const i64* column,
                const i64* target, i64 rows, i64 depth) {
    with_size<2, 3>(depth, [&](auto k) {
        with_size<3, 6, 9>(rows, [&](auto a) {
            with_size<1>(by_column, [&](auto distance) {
                for (i64 b = 0; b < batch; b++) {
                    if (!regular[b]) continue;
                    const T* A = values + b * num_values;
                    double* W = work + b * work_size;
                    for (i64 e = 0; e < count; e++)
                        carry_edge(A + source[e], by_row, distance, W + triangle[e],
                                   carried + b * eliminated + right[e], W + target[e],
                                   reduced_rhs + b * reduced + column[e], k, a);
                }
            });
        });
    });
}

// The blocks of U, with the damping on their diagonal (`row`: the first unknown of a block's rows).
template <class T>
void place_kept(i64 batch, const T* values, i64 num_values, const T* shift, i64 shifts, double* matrix, i64 size,
                i64 count, const i64* source, const i64* target, const i64* stride, const i64* row, const i64* height,
                const i64* width, const bool* is_diagonal) {
    for (i64 b = 0; b < batch; b++)
        for (i64 e = 0; e < count; e++) {
            const T* from = values + b * num_values + source[e];
            double* to = matrix + b * size + target[e];
            for (i64 i = 0; i < height[e]; i++) {
                for (i64 j = 0; j < width[e]; j++) to[i * stride[e] + j] += from[i * width[e] + j];
                if (is_diagonal[e] && shifts) to[i * stride[e] + i] += shift[b * shifts + row[e] + i];
            }
        }
}

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

// total (ROWS, WIDE PIECES) = sum over pairs of Y_left^T Y_right, from factors (depth, rows) and (depth, columns) that begin
// at `left` of Wl and `right` of Wr. Up to WIDE - 1 numbers beyond a factor are read. With ONE_MORE there is one more
// column; a register has its rows: the nine of a camera are 11 products in registers of eight instead of 18.
template <int ROWS, int PIECES, bool ONE_MORE>
void sum_of_products(const double* Wl, const double* Wr, const i64* left, const i64* right, i64 first, i64 last, i64 rows,
                     i64 depth, i64 columns, double* total, i64 stride) {
    constexpr int TALL = ONE_MORE ? in_registers(ROWS) : 0;
    reg<double> sums[ROWS][PIECES] = {}, last_column[TALL + 1] = {};
    for (i64 e = first; e < last; e++) {
        const double *one = Wl + left[e], *other = Wr + right[e];
        for (i64 k = 0; k < depth; k++, one += rows, other += columns) {
            reg<double> factor[PIECES];
#pragma GCC unroll 3
            for (int m = 0; m < PIECES; m++) factor[m] = load_register<WIDE>(other + m * WIDE);
#pragma GCC unroll 12
            for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 3
                for (int m = 0; m < PIECES; m++) sums[r][m] += factor[m] * one[r];
#pragma GCC unroll 6
            for (int m = 0; m < TALL; m++) last_column[m] += load_register<WIDE>(one + m * WIDE) * other[PIECES * WIDE];
        }
    }
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; r++) {
#pragma GCC unroll 3
        for (int m = 0; m < PIECES; m++) store_register<WIDE>(total + r * stride + m * WIDE, sums[r][m]);
        if (ONE_MORE) total[r * stride + PIECES * WIDE] = last_column[r / WIDE][r % WIDE];
    }
}

using Sum = void (*)(const double*, const double*, const i64*, const i64*, i64, i64, i64, i64, i64, double*, i64);

// `sum_of_products` for a number of rows up to `most_rows(PIECES, ONE_MORE)`.
template <int PIECES, bool ONE_MORE, int ROWS = most_rows(PIECES, ONE_MORE)>
Sum sum_of_rows(i64 rows) {
    if constexpr (ROWS > 1)
        if (rows < ROWS) return sum_of_rows<PIECES, ONE_MORE, ROWS - 1>(rows);
    return sum_of_products<ROWS, PIECES, ONE_MORE>;
}

template <bool ONE_MORE>
Sum sum_of(i64 rows, i64 pieces) {
    if constexpr (MOST_PIECES > 2)
        if (pieces == 3) return sum_of_rows<3, ONE_MORE>(rows);
    return pieces == 2 ? sum_of_rows<2, ONE_MORE>(rows) : sum_of_rows<1, ONE_MORE>(rows);
}

// `count` things in parts of at most `most`: how many are in a part, so that all parts are about equal.
i64 part_of(i64 count, i64 most) {
    const i64 parts = (count + most - 1) / most;
    return (count + parts - 1) / parts;
}

// U - Y Y^T: one block of the reduced matrix after the other, the sum over its pairs in registers.
void subtract_pairs(i64 batch, const double* work, i64 work_size, double* matrix, i64 size, const bool* regular,
                    i64 count, const i64* start, const i64* target, const i64* stride, const i64* left,
                    const i64* right, i64 rows, i64 depth, i64 columns) {
    const bool one_more = columns > WIDE && columns % WIDE == 1;
    const i64 registers = columns / WIDE + (!one_more && columns % WIDE), stride_of_sum = (registers + one_more) * WIDE;
    const i64 pieces = part_of(registers, MOST_PIECES);
    std::vector<double> total(rows * stride_of_sum);
    for (i64 b = 0; b < batch; b++) {
        if (!regular[b]) continue;
        const double* W = work + b * work_size;
        for (i64 t = 0; t < count; t++) {
            for (i64 p = 0; p < registers; p += pieces) {
                const i64 have = registers - p < pieces ? registers - p : pieces;
                const bool more = one_more && p + have == registers;
                const i64 together = part_of(rows, most_rows(have, more));
                for (i64 r = 0; r < rows; r += together) {
                    const i64 here = rows - r < together ? rows - r : together;
                    const Sum sum = more ? sum_of<true>(here, have) : sum_of<false>(here, have);
                    sum(W + r, W + p * WIDE, left, right, start[t], start[t + 1], rows, depth, columns,
                        &total[r * stride_of_sum + p * WIDE], stride_of_sum);
                }
            }
            double* to = matrix + b * size + target[t];
            for (i64 i = 0; i < rows; i++)
                for (i64 j = 0; j < columns; j++) to[i * stride[t] + j] -= total[i * stride_of_sum + j];
        }
    }
}

// L^-1 c - Y^T x, in place of L^-1 c.
void carry_back(i64 batch, const double* work, i64 work_size, const double* kept, i64 reduced, double* carried,
                i64 eliminated, i64 count, const i64* right, const i64* column, const i64* target, i64 rows,
                i64 depth) {
    with_size<2, 3>(depth, [&](auto k) {
        with_size<3, 6, 9>(rows, [&](auto a) {
            for (i64 b = 0; b < batch; b++)
                for (i64 e = 0; e < count; e++) {
                    const double *Y = work + b * work_size + target[e], *x = kept + b * reduced + column[e];
                    double* c = carried + b * eliminated + right[e];
                    for (i64 j = 0; j < k; j++) {
                        double value = 0;
                        for (i64 r = 0; r < a; r++) value += Y[j * a + r] * x[r];
                        c[j] -= value;
                    }
                }
        });
    });
}

// y = L^-T (L^-1 c - Y^T x) of every eliminated block, in place and where it belongs.
void solve_pivots(i64 batch, const double* work, i64 work_size, double* carried, i64 eliminated, double* out,
                  i64 unknowns, i64 count, const i64* column, const i64* triangle, const i64* right, i64 depth) {
    with_size<1, 2, 3, 4, 6>(depth, [&](auto k) {
        for (i64 b = 0; b < batch; b++)
            for (i64 p = 0; p < count; p++) {
                const double* L = work + b * work_size + triangle[p];
                double* c = carried + b * eliminated + right[p];
                for (i64 j = k - 1; j >= 0; j--) {
                    double value = c[j];
                    for (i64 q = j + 1; q < k; q++) value -= L[q * k + j] * c[q];
                    c[j] = value * L[j * k + j];
                    out[b * unknowns + column[p] + j] = c[j];
                }
            }
    });
}

}  // namespace

#define MSLSQ_DEFINE(T, type)                                                                                       \
    MSLSQ_EXPORT(schur_factor_pivots, type)                                                                         \
    (i64 batch, const T* values, i64 num_values, const T* shift, i64 shifts, const T* rhs, i64 unknowns,            \
     double* work, i64 work_size, double* carried, i64 eliminated, bool* regular, i64 count, const i64* source,     \
     const i64* column, const i64* triangle, const i64* right, i64 depth) {                                         \
        factor_pivots<T>(batch, values, num_values, shift, shifts, rhs, unknowns, work, work_size, carried,         \
                         eliminated, regular, count, source, column, triangle, right, depth);                       \
    }                                                                                                               \
    MSLSQ_EXPORT(schur_carry_over, type)                                                                            \
    (i64 batch, const T* values, i64 num_values, double* work, i64 work_size, const double* carried,                \
     i64 eliminated, double* reduced_rhs, i64 reduced, const bool* regular, i64 by_row, i64 by_column, i64 count,   \
     const i64* source, const i64* triangle, const i64* right, const i64* column, const i64* target, i64 rows,      \
     i64 depth) {                                                                                                   \
        carry_over<T>(batch, values, num_values, work, work_size, carried, eliminated, reduced_rhs, reduced,        \
                      regular, by_row, by_column, count, source, triangle, right, column, target, rows, depth);     \
    }                                                                                                               \
    MSLSQ_EXPORT(schur_place_kept, type)                                                                            \
    (i64 batch, const T* values, i64 num_values, const T* shift, i64 shifts, double* matrix, i64 size, i64 count,   \
     const i64* source, const i64* target, const i64* stride, const i64* row, const i64* height, const i64* width,  \
     const bool* is_diagonal) {                                                                                     \
        place_kept<T>(batch, values, num_values, shift, shifts, matrix, size, count, source, target, stride, row,   \
                      height, width, is_diagonal);                                                                  \
    }

MSLSQ_DEFINE(double, f64)
MSLSQ_DEFINE(float, f32)

MSLSQ_EXPORT(schur_subtract_pairs, any)
(i64 batch, const double* work, i64 work_size, double* matrix, i64 size, const bool* regular, i64 count,
 const i64* start, const i64* target, const i64* stride, const i64* left, const i64* right, i64 rows, i64 depth,
 i64 columns) {
    subtract_pairs(batch, work, work_size, matrix, size, regular, count, start, target, stride, left, right, rows, depth,
                   columns);
}

MSLSQ_EXPORT(schur_carry_back, any)
(i64 batch, const double* work, i64 work_size, const double* kept, i64 reduced, double* carried, i64 eliminated,
 i64 count, const i64* right, const i64* column, const i64* target, i64 rows, i64 depth) {
    carry_back(batch, work, work_size, kept, reduced, carried, eliminated, count, right, column, target, rows, depth);
}

MSLSQ_EXPORT(schur_solve_pivots, any)
(i64 batch, const double* work, i64 work_size, double* carried, i64 eliminated, double* out, i64 unknowns, i64 count,
 const i64* column, const i64* triangle, const i64* right, i64 depth) {
    solve_pivots(batch, work, work_size, carried, eliminated, out, unknowns, count, column, triangle, right, depth);
}

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
