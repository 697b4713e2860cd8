// A cubic B-spline and its gradient at one point; mslsq/alignment/sampling.py says what of.
#pragma once

#include "vectors.h"

namespace mslsq {
namespace MSLSQ_TARGET {

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

// a + b t
template <class T>
inline Four<T> plus(Four<T> a, const Four<T>& b, T t) {
    MSLSQ_FOUR a.part[n] += b.part[n] * t;
    return a;
}

template <class T>
inline Four<T> times(Four<T> a, const Four<T>& b) {
    MSLSQ_FOUR a.part[n] *= b.part[n];
    return a;
}

// The sums of four times four numbers.
template <class T>
inline void sums_of_four(const Four<T>* v, T* to) {
    constexpr int W = Four<T>::W;
    if constexpr (W == 4) {
        const reg<T, 4> parts[4] = {v[0].part[0], v[1].part[0], v[2].part[0], v[3].part[0]};
        store_register<4, T>(to, sums<T, 4>(parts));
    } else {
        for (int k = 0; k < 4; k += 2) {
            const reg<T, W> parts[2] = {v[k].part[0] + v[k].part[1], v[k + 1].part[0] + v[k + 1].part[1]};
            store_register<W, T>(to + k, sums<T, W>(parts));
        }
    }
}

// The weights of the four knots around a point as polynomials of its fractional part, lowest power first: 1/6 and 1/2 are
// taken out.
template <class T>
struct Knots {
    static constexpr T VALUE[4][4] = {{1, 4, 1, 0}, {-3, 0, 3, 0}, {3, -6, 3, 0}, {-1, 3, -3, 1}};
    static constexpr T SLOPE[3][4] = {{-1, 0, 1, 0}, {2, -4, 2, 0}, {-1, 3, -3, 1}};
};

template <class T>
inline Four<T> weights(T t) {
    Four<T> w = plus(load_four(Knots<T>::VALUE[2]), load_four(Knots<T>::VALUE[3]), t);
    w = plus(load_four(Knots<T>::VALUE[1]), w, t);
    return plus(load_four(Knots<T>::VALUE[0]), w, t);
}

template <class T>
inline Four<T> slopes(T t) {
    Four<T> w = plus(load_four(Knots<T>::SLOPE[1]), load_four(Knots<T>::SLOPE[2]), t);
    return plus(load_four(Knots<T>::SLOPE[0]), w, t);
}

template <class T>
inline void store_four(T* p, const Four<T>& v) {
    MSLSQ_FOUR store_register<Four<T>::W, T>(p + n * Four<T>::W, v.part[n]);
}

// Of one point: the weights along both axes, and with them value and gradient of any channel.
template <class T>
class Basis {
    Four<T> across, across_slope;
    T down[4], down_slope[4];

public:
    Basis(T x, T y) : across(weights(x)), across_slope(slopes(x)) {
        store_four(down, weights(y));
        store_four(down_slope, slopes(y));
    }

    // p: the upper left of the 4 x 4 coefficients, whose rows are `stride` apart; to: value, ∂/∂x, ∂/∂y.
    void value_and_gradient(const T* p, i64 stride, T* to) const {
        Four<T> sum{}, slope{};
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) {
            const Four<T> row = load_four(p + r * stride);
            sum = plus(sum, row, down[r]);
            slope = plus(slope, row, down_slope[r]);
        }
        const Four<T> parts[4] = {times(sum, across), times(sum, across_slope), times(slope, across), Four<T>{}};
        T found[4];
        sums_of_four(parts, found);
        to[0] = found[0] * T(1.0 / 36), to[1] = found[1] * T(1.0 / 12), to[2] = found[2] * T(1.0 / 12);
    }

    T value(const T* p, i64 stride) const {
        Four<T> sum{};
#pragma GCC unroll 4
        for (int r = 0; r < 4; r++) sum = plus(sum, load_four(p + r * stride), down[r]);
        sum = times(sum, across);
        T total[4];
        store_four(total, sum);
        return ((total[0] + total[1]) + (total[2] + total[3])) * T(1.0 / 36);
    }
};

// An index folded at the centres of the border pixels, for up to one raster outside; a border pixel beyond that.
inline i64 mirrored(i64 index, i64 size) {
    index = index < 0 ? -index : index;
    const i64 beyond = size - 1 - index;
    const i64 folded = size - 1 - (beyond < 0 ? -beyond : beyond);
    return folded < 0 ? 0 : folded;
}

constexpr double FARTHEST = 1e6;  // pixels: coordinates are clamped here before they become indices

// Channels of coefficients, each (height, width).
template <class T>
struct Spline {
    const T* coefficients;
    i64 channels, height, width;

    // body(channel, basis, p, stride) for every channel at a finite point.
    template <class Body>
    void at(double x, double y, Body body) const {
        x = x > -FARTHEST ? x < FARTHEST ? x : FARTHEST : -FARTHEST;
        y = y > -FARTHEST ? y < FARTHEST ? y : FARTHEST : -FARTHEST;
        const double left = std::floor(x), top = std::floor(y);
        const i64 column = i64(left) - 1, row = i64(top) - 1;
        const Basis<T> basis(T(x - left), T(y - top));
        if (column >= 0 && row >= 0 && column + 4 <= width && row + 4 <= height) {
            const T* p = coefficients + row * width + column;
            for (i64 c = 0; c < channels; c++) body(c, basis, p + c * height * width, width);
            return;
        }
        i64 place[16];
        for (i64 k = 0; k < 16; k++) place[k] = mirrored(row + k / 4, height) * width + mirrored(column + k % 4, width);
        for (i64 c = 0; c < channels; c++) {
            T around[16];
            for (i64 k = 0; k < 16; k++) around[k] = coefficients[c * height * width + place[k]];
            body(c, basis, around, i64(4));
        }
    }
};

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
