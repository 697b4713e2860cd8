// The dense kernels of the fronts: C -= A B^T on a tile that stays in registers, and eight columns times a vector.
#pragma once

#include "vectors.h"

namespace mslsq {
namespace MSLSQ_TARGET {

// C (8 V, 8) -= A (8 V, depth) B (8, depth)^T; A, C by columns, B[j, p] at B[p bp + j bj]. With SOLVE then C <- C D^-T,
// the diagonal of D given by its inverse.
template <class T, int V, bool SOLVE>
inline void tile(const T* A, i64 lda, const T* B, i64 bp, i64 bj, T* C, i64 ldc, i64 depth, const T* D, i64 ldd,
                 const T* inverse) {
    constexpr int GROUP = WIDE ? TILE : TILE / 2;  // with 16 registers of half the width only half the columns fit
    vec<T> t[TILE][V];
#pragma GCC unroll 2
    for (int g = 0; g < TILE; g += GROUP) {
#pragma GCC unroll 8
        for (int j = g; j < g + GROUP; j++)
#pragma GCC unroll 3
            for (int v = 0; v < V; v++) t[j][v] = load(C + j * ldc + v * TILE);
        const T* a = A;
        const T* b = B + g * bj;
        for (i64 p = 0; p < depth; p++, a += lda, b += bp) {
            vec<T> left[V];
#pragma GCC unroll 3
            for (int v = 0; v < V; v++) left[v] = load(a + v * TILE);
#pragma GCC unroll 8
            for (int j = 0; j < GROUP; j++) {
                const T right = b[j * bj];
#pragma GCC unroll 3
                for (int v = 0; v < V; v++) t[g + j][v] -= left[v] * right;
            }
        }
        if (!SOLVE) {
#pragma GCC unroll 8
            for (int j = g; j < g + GROUP; j++)
#pragma GCC unroll 3
                for (int v = 0; v < V; v++) store(C + j * ldc + v * TILE, t[j][v]);
        }
    }
    if (SOLVE) {
#pragma GCC unroll 8
        for (int j = 0; j < TILE; j++) {
#pragma GCC unroll 8
            for (int q = 0; q < j; q++) {
                const T entry = D[q * ldd + j];
#pragma GCC unroll 3
                for (int v = 0; v < V; v++) t[j][v] -= t[q][v] * entry;
            }
#pragma GCC unroll 3
            for (int v = 0; v < V; v++) {
                t[j][v] *= inverse[j];
                store(C + j * ldc + v * TILE, t[j][v]);
            }
        }
    }
}

constexpr int TALL = WIDE ? 3 : 1;  // 24 of 32 registers hold the sum

// C (rows, 8) -= A (rows, depth) B (8, depth)^T, 8 | rows.
template <class T>
inline void subtract_product(const T* A, i64 lda, const T* B, i64 bp, i64 bj, T* C, i64 ldc, i64 rows, i64 depth) {
    i64 i = 0;
    for (; i + TALL * TILE <= rows; i += TALL * TILE)
        tile<T, TALL, false>(A + i, lda, B, bp, bj, C + i, ldc, depth, nullptr, 0, nullptr);
    for (; i < rows; i += TILE) tile<T, 1, false>(A + i, lda, B, bp, bj, C + i, ldc, depth, nullptr, 0, nullptr);
}

// C (rows, 8) <- (C - A B^T) D^-T inside one panel of leading dimension ld.
template <class T>
inline void subtract_product_and_solve(const T* A, i64 ld, const T* B, T* C, i64 rows, i64 depth, const T* D,
                                       const T* inverse) {
    i64 i = 0;
    for (; i + TALL * TILE <= rows; i += TALL * TILE)
        tile<T, TALL, true>(A + i, ld, B, ld, 1, C + i, ld, depth, D, ld, inverse);
    for (; i < rows; i += TILE) tile<T, 1, true>(A + i, ld, B, ld, 1, C + i, ld, depth, D, ld, inverse);
}

// c[0 : rows] -= A (rows, 8) b[0 : 8], 8 | rows.
template <class T>
inline void subtract_eight_columns(const T* A, i64 lda, const T* b, T* c, i64 rows) {
    T factor[TILE];
    std::memcpy(factor, b, sizeof factor);
    for (i64 i = 0; i < rows; i += TILE) {
        vec<T> even = load(c + i), odd = zero<T>();  // two chains: half the latency
#pragma GCC unroll 4
        for (int j = 0; j < TILE; j += 2) {
            even -= load(A + j * lda + i) * factor[j];
            odd -= load(A + (j + 1) * lda + i) * factor[j + 1];
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
        for (int j = 0; j < TILE; j++) dots[j] += load(A + j * lda + i) * right;
    }
    store(c, load(c) - sums<T>(dots));
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
        column[j] *= scale;
#pragma GCC unroll 8
        for (int i = j + 1; i < TILE; i++) column[i] -= column[j] * column[j][i];
        column[j][j] = scale;
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
