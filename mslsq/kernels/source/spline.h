// A cubic B-spline and its gradient at many points; mslsq/alignment/sampling.py says what of.
#pragma once

#include <algorithm>

#include "vectors.h"

namespace mslsq {
namespace MSLSQ_TARGET {

constexpr i64 CHUNK = 64;        // points at a time
constexpr double FARTHEST = 1e6;  // pixels: coordinates are clamped here before they become indices

// Four numbers in as many registers as they need: a row of the 4 x 4 coefficients around a point.
template <class T>
struct Four {
    static constexpr int W = FULL<T> < 4 ? FULL<T> : 4, N = 4 / W;
    reg<T, W> part[N];
};

#define MSLSQ_FOUR _Pragma("GCC unroll 2") for (int n = 0; n < Four<T>::N; n++)

template <class T>
inline Four<T> load_four(const T* p) {
    Four<T> v;
    MSLSQ_FOUR v.part[n] = load_register<Four<T>::W>(p + n * Four<T>::W);
    return v;
}

template <class T>
inline void store_four(T* p, const Four<T>& v) {
    MSLSQ_FOUR store_register<Four<T>::W, T>(p + n * Four<T>::W, v.part[n]);
}

// a + b t
template <class T>
inline Four<T> plus(Four<T> a, const Four<T>& b, T t) {
    MSLSQ_FOUR a.part[n] += b.part[n] * t;
    return a;
}

inline double bounded(double x) { return x > -FARTHEST ? x < FARTHEST ? x : FARTHEST : -FARTHEST; }

inline i32 floor_of(double x) {  // of a bounded number; in vectors on every processor
    const i32 whole = i32(x);
    return whole - (double(whole) > x);
}

// An index folded at the centres of the border pixels, for up to one raster outside; a border pixel beyond that.
inline i64 mirrored(i64 index, i64 size) {
    index = index < 0 ? -index : index;
    const i64 beyond = size - 1 - index;
    const i64 folded = size - 1 - (beyond < 0 ? -beyond : beyond);
    return folded < 0 ? 0 : folded;
}

// Channels of coefficients, each (height, width).
template <class T>
struct Spline {
    const T* coefficients;
    i64 channels, height, width;
};

// Along one axis: the first of the four knots around each point, and their weights and slopes there, without the factors
// 1/6 and 1/2. Knot by knot, so that each is a loop over points that the compiler makes vectors of.
template <class T>
struct Knots {
    i32 first[CHUNK];
    T weight[4][CHUNK], slope[4][CHUNK];

    void place(const double* at, i64 have) {
        for (i64 k = 0; k < have; k++) {
            const double x = bounded(at[k]);
            const i32 left = floor_of(x);
            first[k] = left - 1;
            const T t = T(x - double(left)), s = 1 - t;
            weight[0][k] = s * s * s;
            weight[1][k] = 4 - 3 * t * t * (1 + s);
            weight[2][k] = 4 - 3 * s * s * (1 + t);
            weight[3][k] = t * t * t;
            slope[0][k] = -s * s;
            slope[1][k] = t * (3 * t - 4);
            slope[2][k] = s * (1 + 3 * t);
            slope[3][k] = t * t;
        }
    }
};

// The spline at `CHUNK` points at most. Down the columns of the 4 x 4 coefficients point by point, then across them for
// many points at once: a sum across the four numbers of a register is most of the work otherwise.
template <class T>
class Sampler {
    Knots<T> x, y;
    T down[4 * CHUNK], down_slope[4 * CHUNK];

    template <bool Gradient>
    void sum_down(const Spline<T>& spline, const T* plane, const bool* use, i64 have) {
        const i64 height = spline.height, width = spline.width;
        for (i64 k = 0; k < have; k++) {
            if (use && !use[k]) {
                store_four(down + 4 * k, Four<T>{});
                if (Gradient) store_four(down_slope + 4 * k, Four<T>{});
                continue;
            }
            const i64 column = x.first[k], row = y.first[k];
            const T* p = plane + row * width + column;
            i64 stride = width;
            T around[16];
            if (column < 0 || row < 0 || column + 4 > width || row + 4 > height) {
                for (i64 i = 0; i < 16; i++)
                    around[i] = plane[mirrored(row + i / 4, height) * width + mirrored(column + i % 4, width)];
                p = around, stride = 4;
            }
            Four<T> sum{}, slope{};
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++) {
                const Four<T> numbers = load_four(p + r * stride);
                sum = plus(sum, numbers, y.weight[r][k]);
                if (Gradient) slope = plus(slope, numbers, y.slope[r][k]);
            }
            store_four(down + 4 * k, sum);
            if (Gradient) store_four(down_slope + 4 * k, slope);
        }
    }

    // to[k] = factor * sum of rows[k] times the weights of point k
    static void across(const T* rows, const T (*weights)[CHUNK], T factor, i64 have, T* to) {
        for (i64 k = 0; k < have; k++)
            to[k] = factor * ((rows[4 * k] * weights[0][k] + rows[4 * k + 1] * weights[1][k]) +
                              (rows[4 * k + 2] * weights[2][k] + rows[4 * k + 3] * weights[3][k]));
    }

public:
    void place(const double* pixel_x, const double* pixel_y, i64 have) {
        x.place(pixel_x, have);
        y.place(pixel_y, have);
    }

    // Of one channel at the points that are to be used (all of them without `use`), zero at the others.
    void value(const Spline<T>& spline, i64 channel, const bool* use, i64 have, T* to) {
        sum_down<false>(spline, spline.coefficients + channel * spline.height * spline.width, use, have);
        across(down, x.weight, T(1.0 / 36), have, to);
    }

    // The same with the derivatives along x and y.
    void value_and_gradient(const Spline<T>& spline, i64 channel, const bool* use, i64 have, T* to, T* along_x, T* along_y) {
        sum_down<true>(spline, spline.coefficients + channel * spline.height * spline.width, use, have);
        across(down, x.weight, T(1.0 / 36), have, to);
        across(down, x.slope, T(1.0 / 12), have, along_x);
        across(down_slope, x.weight, T(1.0 / 12), have, along_y);
    }
};

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
