// A cubic B-spline and its gradient at many points; mslsq/alignment/sampling.py says what of.
#pragma once

#include <algorithm>
#include <cstring>

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

// Four registers of four numbers, with rows and columns exchanged.
template <class T>
inline void transpose(const Four<T>* rows, Four<T>* columns) {
    constexpr int W = Four<T>::W;
    if constexpr (W == 4) {
        const reg<T, 4> a = rows[0].part[0], b = rows[1].part[0], c = rows[2].part[0], d = rows[3].part[0];
        const reg<T, 4> ab = MSLSQ_SHUFFLE(a, b, 0, 4, 2, 6), ba = MSLSQ_SHUFFLE(a, b, 1, 5, 3, 7);
        const reg<T, 4> cd = MSLSQ_SHUFFLE(c, d, 0, 4, 2, 6), dc = MSLSQ_SHUFFLE(c, d, 1, 5, 3, 7);
        columns[0].part[0] = MSLSQ_SHUFFLE(ab, cd, 0, 1, 4, 5);
        columns[1].part[0] = MSLSQ_SHUFFLE(ba, dc, 0, 1, 4, 5);
        columns[2].part[0] = MSLSQ_SHUFFLE(ab, cd, 2, 3, 6, 7);
        columns[3].part[0] = MSLSQ_SHUFFLE(ba, dc, 2, 3, 6, 7);
    } else {
        MSLSQ_FOUR {
            columns[0].part[n] = MSLSQ_SHUFFLE(rows[2 * n].part[0], rows[2 * n + 1].part[0], 0, 2);
            columns[1].part[n] = MSLSQ_SHUFFLE(rows[2 * n].part[0], rows[2 * n + 1].part[0], 1, 3);
            columns[2].part[n] = MSLSQ_SHUFFLE(rows[2 * n].part[1], rows[2 * n + 1].part[1], 0, 2);
            columns[3].part[n] = MSLSQ_SHUFFLE(rows[2 * n].part[1], rows[2 * n + 1].part[1], 1, 3);
        }
    }
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

    template <bool Slopes>
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
            if (!Slopes) continue;
            slope[0][k] = -s * s;
            slope[1][k] = t * (3 * t - 4);
            slope[2][k] = s * (1 + 3 * t);
            slope[3][k] = t * t;
        }
    }

    // Are all knots of all points those of pixels?
    bool within(i64 size, i64 have) const {
        i32 least = first[0], most = first[0];
        for (i64 k = 0; k < have; k++) {
            least = first[k] < least ? first[k] : least;
            most = first[k] > most ? first[k] : most;
        }
        return least >= 0 && most + 4 <= size;
    }
};

// Four numbers, STEP apart.
template <int STEP, class T>
inline Four<T> load_every(const T* p) {
    if constexpr (STEP == 1) return load_four(p);
    constexpr int W = Four<T>::W;
    Four<T> v;
    MSLSQ_FOUR {
        const reg<T, W> a = load_register<W>(p + 2 * n * W), b = load_register<W>(p + (2 * n + 1) * W);
        if constexpr (W == 4)
            v.part[n] = MSLSQ_SHUFFLE(a, b, 0, 2, 4, 6);
        else
            v.part[n] = MSLSQ_SHUFFLE(a, b, 0, 2);
    }
    return v;
}

// The spline at `CHUNK` points at most. Down the columns of the 4 x 4 coefficients point by point, then across them for
// many points at once: a sum across the four numbers of a register is most of the work otherwise. Points of one row, a
// pixel or two apart, as those of a map that is only shifted, have the sums of most columns in common.
template <class T>
class Sampler {
    Knots<T> x, y;
    int step;  // pixels from a point to the next along such a row, or 0
    T down[4 * CHUNK], down_slope[4 * CHUNK];

    int step_along(const double* pixel_y, i64 have) const {
        if (have < 8 || pixel_y[0] != pixel_y[have - 1]) return 0;
        const i32 first = x.first[0], by = x.first[1] - first;
        if (by != 1 && by != 2) return 0;
        i32 other = 0;
        for (i64 k = 0; k < have; k++) other |= (x.first[k] != first + i32(k) * by ? 1 : 0) | (pixel_y[k] != pixel_y[0] ? 1 : 0);
        return other ? 0 : by;
    }

    // Down all columns that such points reach, one after the other.
    template <bool Gradient>
    void sum_down_all(const Spline<T>& spline, const T* plane, i64 have) {
        const i64 width = spline.width, first = x.first[0], count = step * (have - 1) + 4;
        const T* rows[4];
        for (i64 r = 0; r < 4; r++) rows[r] = plane + mirrored(i64(y.first[0]) + r, spline.height) * width;
        const auto sum_at = [&](i64 to, i64 column) {
            T sum = 0, slope = 0;
            for (int r = 0; r < 4; r++) {
                sum += rows[r][column] * y.weight[r][0];
                if (Gradient) slope += rows[r][column] * y.slope[r][0];
            }
            down[to] = sum;
            if (Gradient) down_slope[to] = slope;
        };
        const i64 low = std::min(std::max(-first, i64(0)), count), high = std::max(std::min(width - first, count), low);
        for (i64 k = 0; k < low; k++) sum_at(k, mirrored(first + k, width));
        i64 k = low;
        for (; k + 4 <= high; k += 4) {
            Four<T> sum{}, slope{};
#pragma GCC unroll 4
            for (int r = 0; r < 4; r++) {
                const Four<T> numbers = load_four(rows[r] + first + k);
                sum = plus(sum, numbers, y.weight[r][0]);
                if (Gradient) slope = plus(slope, numbers, y.slope[r][0]);
            }
            store_four(down + k, sum);
            if (Gradient) store_four(down_slope + k, slope);
        }
        for (; k < high; k++) sum_at(k, first + k);
        for (; k < count; k++) sum_at(k, mirrored(first + k, width));
    }

    // Down the columns of the 4 x 4 coefficients around point k, which begin at p.
    template <bool Gradient>
    void sum_down_at(const T* p, i64 stride, i64 k) {
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

    // Always inlined: GCC 12 makes wrong code of the copy that it makes for `use` = nullptr (-fipa-cp-clone).
    template <bool Gradient>
    __attribute__((always_inline)) void sum_down(const Spline<T>& spline, const T* plane, const bool* use, i64 have) {
        const i64 height = spline.height, width = spline.width;
        // Nearly always all are to be used, and lie within the raster: nothing is asked of each, then.
        if (x.within(width, have) && y.within(height, have) && !(use && std::memchr(use, false, have))) {
            for (i64 k = 0; k < have; k++) sum_down_at<Gradient>(plane + y.first[k] * width + x.first[k], width, k);
            return;
        }
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
            sum_down_at<Gradient>(p, stride, k);
        }
    }

    // factor times the sum of four columns of points, each times its weights, of points from k on.
    static Four<T> weighted(const Four<T>* columns, const T (*weights)[CHUNK], T factor, i64 k) {
        const Four<T> w0 = load_four(weights[0] + k), w1 = load_four(weights[1] + k);
        const Four<T> w2 = load_four(weights[2] + k), w3 = load_four(weights[3] + k);
        Four<T> sum;
        MSLSQ_FOUR sum.part[n] = factor * ((columns[0].part[n] * w0.part[n] + columns[1].part[n] * w1.part[n]) +
                                           (columns[2].part[n] * w2.part[n] + columns[3].part[n] * w3.part[n]));
        return sum;
    }

    static T weighted_one(const T* row, const T (*weights)[CHUNK], T factor, i64 k) {
        return factor * ((row[0] * weights[0][k] + row[1] * weights[1][k]) +
                         (row[2] * weights[2][k] + row[3] * weights[3][k]));
    }

    static void columns_of(const T* rows, Four<T>* columns) {
        Four<T> four[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++) four[j] = load_four(rows + 4 * j);
        transpose<T>(four, columns);
    }

    // The four columns of four points: those of each STEP farther than those of the one before, or (0) four behind the other.
    template <int STEP>
    static void columns_at(const T* sums, i64 k, Four<T>* columns) {
        if constexpr (STEP == 0) {
            columns_of(sums + 4 * k, columns);
        } else {
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) columns[j] = load_every<STEP>(sums + STEP * k + j);
        }
    }

    // Values, and slopes along x and y, of four points at a time.
    template <bool Gradient, int STEP>
    void across(i64 have, T* to, T* along_x, T* along_y) const {
        constexpr T ONE = T(1.0 / 36), SLOPE = T(1.0 / 12);
        constexpr i64 NEXT = STEP ? STEP : 4;
        const i64 whole = have / 4 * 4;
        for (i64 k = 0; k < whole; k += 4) {
            Four<T> columns[4];
            columns_at<STEP>(down, k, columns);
            store_four(to + k, weighted(columns, x.weight, ONE, k));
            if (!Gradient) continue;
            store_four(along_x + k, weighted(columns, x.slope, SLOPE, k));
            columns_at<STEP>(down_slope, k, columns);
            store_four(along_y + k, weighted(columns, x.weight, SLOPE, k));
        }
        for (i64 k = whole; k < have; k++) {
            to[k] = weighted_one(down + NEXT * k, x.weight, ONE, k);
            if (!Gradient) continue;
            along_x[k] = weighted_one(down + NEXT * k, x.slope, SLOPE, k);
            along_y[k] = weighted_one(down_slope + NEXT * k, x.weight, SLOPE, k);
        }
    }

    template <bool Gradient>
    void sample(const Spline<T>& spline, i64 channel, const bool* use, i64 have, T* to, T* along_x, T* along_y) {
        const T* plane = spline.coefficients + channel * spline.height * spline.width;
        if (!step) {
            sum_down<Gradient>(spline, plane, use, have);
            return across<Gradient, 0>(have, to, along_x, along_y);
        }
        sum_down_all<Gradient>(spline, plane, have);
        step == 1 ? across<Gradient, 1>(have, to, along_x, along_y) : across<Gradient, 2>(have, to, along_x, along_y);
        if (!use || !std::memchr(use, false, have)) return;
        for (i64 k = 0; k < have; k++) {
            if (use[k]) continue;
            to[k] = 0;
            if (Gradient) along_x[k] = along_y[k] = 0;
        }
    }

public:
    // Where the points are; `Gradient`, if slopes will be asked for.
    template <bool Gradient>
    void place(const double* pixel_x, const double* pixel_y, i64 have) {
        x.template place<Gradient>(pixel_x, have);
        y.template place<Gradient>(pixel_y, have);
        step = step_along(pixel_y, have);
    }

    // Of one channel at the points that are to be used (all of them without `use`), zero at the others.
    void value(const Spline<T>& spline, i64 channel, const bool* use, i64 have, T* to) {
        sample<false>(spline, channel, use, have, to, nullptr, nullptr);
    }

    // The same with the derivatives along x and y.
    void value_and_gradient(const Spline<T>& spline, i64 channel, const bool* use, i64 have, T* to, T* along_x, T* along_y) {
        sample<true>(spline, channel, use, have, to, along_x, along_y);
    }
};

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
