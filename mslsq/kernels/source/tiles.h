// The dense kernels of the fronts: C -= A B^T on a tile that stays in registers, and eight columns times a vector.
#pragma once

#include "vectors.h"

namespace mslsq {
namespace MSLSQ_TARGET {

// Columns of a tile that are summed up together where one takes N registers: as many as there is room for beside a part
// of a column of A and a number of B.
constexpr int columns_together(int N) {
    int columns = TILE;
    while (columns > 1 && columns * N + (N < 3 ? N : 2) + 1 > REGISTERS) columns /= 2;
    return columns;
}

// C (W N, 8) -= A (W N, depth) B (8, depth)^T, in registers of W numbers; A, C by columns, B[j, p] at B[p bp + j bj]. With
// FRESH what is in C is not read, and counts as zero.
template <int W, int N, bool FRESH = false, class T>
inline void subtract_tile(const T* A, i64 lda, const T* B, i64 bp, i64 bj, T* C, i64 ldc, i64 depth) {
    constexpr int COLUMNS = columns_together(N);
#pragma GCC unroll 1
    for (int first = 0; first < TILE; first += COLUMNS) {
        T* to = C + first * ldc;
        const T *a = A, *b = B + first * bj;
        reg<T, W> t[COLUMNS][N];
#pragma GCC unroll 8
        for (int j = 0; j < COLUMNS; j++)
#pragma GCC unroll 12
            for (int n = 0; n < N; n++) t[j][n] = FRESH ? reg<T, W>{} : load_register<W>(to + j * ldc + n * W);
        for (i64 p = 0; p < depth; p++, a += lda, b += bp) {
            if constexpr (N < COLUMNS) {
                reg<T, W> left[N];
#pragma GCC unroll 12
                for (int n = 0; n < N; n++) left[n] = load_register<W>(a + n * W);
#pragma GCC unroll 8
                for (int j = 0; j < COLUMNS; j++)
#pragma GCC unroll 12
                    for (int n = 0; n < N; n++) t[j][n] -= left[n] * b[j * bj];
            } else {
#pragma GCC unroll 12
                for (int n = 0; n < N; n++) {
                    const reg<T, W> left = load_register<W>(a + n * W);
#pragma GCC unroll 8
                    for (int j = 0; j < COLUMNS; j++) t[j][n] -= left * b[j * bj];
                }
            }
        }
#pragma GCC unroll 8
        for (int j = 0; j < COLUMNS; j++)
#pragma GCC unroll 12
            for (int n = 0; n < N; n++) store_register<W>(to + j * ldc + n * W, t[j][n]);
    }
}

// The same for eight rows.
template <bool FRESH = false, class T>
inline void subtract_eight_rows(const T* A, i64 lda, const T* B, i64 bp, i64 bj, T* C, i64 ldc, i64 depth) {
    subtract_tile<WIDTH<T>, vec<T>::N, FRESH>(A, lda, B, bp, bj, C, ldc, depth);
}

// C (rows, 8) <- C D^-T, rows W at a time, the diagonal of D given by its inverse; eight registers at a time.
template <int W, class T>
inline void solve_rows(T* C, i64 ldc, i64 rows, const T* D, i64 ldd, const T* inverse) {
#pragma GCC unroll 1
    for (T* at = C; at < C + rows; at += W) {
        reg<T, W> t[TILE];
#pragma GCC unroll 8
        for (int j = 0; j < TILE; j++) {
            t[j] = load_register<W>(at + j * ldc);
#pragma GCC unroll 8
            for (int q = 0; q < j; q++) t[j] -= t[q] * D[q * ldd + j];
            t[j] *= inverse[j];
            store_register<W>(at + j * ldc, t[j]);
        }
    }
}

// C (rows, 8) -= A (rows, depth) B (8, depth)^T, 8 | rows: three full registers of rows at a time, or twelve rows where
// that is more, as long as no four rows are left.
template <bool FRESH = false, class T>
inline void subtract_product(const T* A, i64 lda, const T* B, i64 bp, i64 bj, T* C, i64 ldc, i64 rows, i64 depth) {
    constexpr int F = FULL<T>, ROWS = 3 * F < 12 ? 12 : 3 * F;
    i64 i = 0;
    for (; i + ROWS <= rows && (ROWS % TILE == 0 || i + ROWS + 4 != rows); i += ROWS)
        subtract_tile<F, ROWS / F, FRESH>(A + i, lda, B, bp, bj, C + i, ldc, depth);
    if constexpr (F >= TILE) {
        if (i + 2 * F <= rows) {
            subtract_tile<F, 2, FRESH>(A + i, lda, B, bp, bj, C + i, ldc, depth);
            i += 2 * F;
        }
        if constexpr (F > TILE)
            if (i + F <= rows) {
                subtract_tile<F, 1, FRESH>(A + i, lda, B, bp, bj, C + i, ldc, depth);
                i += F;
            }
    }
    for (; i < rows; i += TILE) subtract_eight_rows<FRESH>(A + i, lda, B, bp, bj, C + i, ldc, depth);
}

// C (rows, 8) <- (C - A B^T) D^-T inside one panel of leading dimension ld.
template <class T>
inline void subtract_product_and_solve(const T* A, i64 ld, const T* B, T* C, i64 rows, i64 depth, const T* D,
                                       const T* inverse) {
    if (depth) subtract_product(A, ld, B, ld, 1, C, ld, rows, depth);
    const i64 full = rows / FULL<T> * FULL<T>;
    solve_rows<FULL<T>>(C, ld, full, D, ld, inverse);
    solve_rows<WIDTH<T>>(C + full, ld, rows - full, D, ld, inverse);
}

// c[0 : rows] -= A (rows, 8) b[0 : 8], 8 | rows.
template <class T>
inline void subtract_eight_columns(const T* A, i64 lda, const T* b, T* c, i64 rows) {
    T factor[TILE];
    std::memcpy(factor, b, sizeof factor);
    for (i64 i = 0; i < rows; i += TILE) {
        vec<T> even = load(c + i), odd{};  // two chains: half the latency
#pragma GCC unroll 4
        for (int j = 0; j < TILE; j += 2) {
            even = even - load(A + j * lda + i) * factor[j];
            odd = odd - load(A + (j + 1) * lda + i) * factor[j + 1];
        }
        store(c + i, even + odd);
    }
}

// c[0 : 8] -= A (rows, 8)^T b[0 : rows], 8 | rows.
template <class T>
inline void subtract_eight_dots(const T* A, i64 lda, const T* b, T* c, i64 rows) {
    vec<T> dots[TILE] = {};
    for (i64 i = 0; i < rows; i += TILE) {
        const vec<T> right = load(b + i);
#pragma GCC unroll 8
        for (int j = 0; j < TILE; j++) dots[j] = dots[j] + load(A + j * lda + i) * right;
    }
    store(c, load(c) - sums(dots));
}

// Cholesky of the 8 x 8 tile, in place, its diagonal inverted (only its inverse is ever used); false at a pivot that is
// not positive and finite. Above the diagonal anything may stand, and does afterwards.
template <class T>
inline bool factor_diagonal(T* L, i64 ld, T* inverse) {
    vec<T> column[TILE];
#pragma GCC unroll 8
    for (int j = 0; j < TILE; j++) column[j] = load(L + j * ld);
    bool healthy = true;
#pragma GCC unroll 8
    for (int j = 0; j < TILE; j++) {
        const T pivot = column[j][j];
        healthy &= pivot > 0 && pivot <= std::numeric_limits<T>::max();
        const T scale = 1 / std::sqrt(pivot);
        column[j] = column[j] * scale;
#pragma GCC unroll 8
        for (int i = j + 1; i < TILE; i++) column[i] = column[i] - column[j] * column[j][i];
        column[j].set(j, scale);
        inverse[j] = scale;
        store(L + j * ld, column[j]);
    }
    return healthy;
}

// b <- L^-1 b for one such tile; in registers, where the compiler need not fear that b and L are the same memory.
template <class T>
inline void solve_diagonal(const T* L, i64 ld, T* b) {
    T x[TILE];
    std::memcpy(x, b, sizeof x);
#pragma GCC unroll 8
    for (int q = 0; q < TILE; q++) {
        x[q] *= L[q * ld + q];
#pragma GCC unroll 8
        for (int i = q + 1; i < TILE; i++) x[i] -= L[q * ld + i] * x[q];
    }
    std::memcpy(b, x, sizeof x);
}

// b <- L^-T b.
template <class T>
inline void solve_diagonal_transposed(const T* L, i64 ld, T* b) {
    T x[TILE];
    std::memcpy(x, b, sizeof x);
#pragma GCC unroll 8
    for (int q = TILE - 1; q >= 0; q--) {
        x[q] *= L[q * ld + q];
#pragma GCC unroll 8
        for (int i = 0; i < q; i++) x[i] -= L[i * ld + q] * x[q];
    }
    std::memcpy(b, x, sizeof x);
}

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
