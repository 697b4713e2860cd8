// Vectors of eight numbers, as the compiler splits them for the processor it compiles for.
//
// The files of this folder are compiled once for every instruction set of build.py, each in a namespace of its own
// (MSLSQ_TARGET); dispatch.cpp picks the best that the processor has.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>

#ifndef MSLSQ_TARGET
#define MSLSQ_TARGET baseline
#endif

namespace mslsq {
namespace MSLSQ_TARGET {

using i64 = std::int64_t;
using i32 = std::int32_t;

constexpr int TILE = 8;  // columns of a tile, and what rows and columns of fronts are padded to

#ifdef __AVX512F__
constexpr bool WIDE = true;  // 32 registers of eight doubles; else 16 of four
#else
constexpr bool WIDE = false;
#endif

template <class T>
struct Eight;

template <>
struct Eight<double> {
    typedef double type __attribute__((vector_size(64)));
    typedef double anywhere __attribute__((vector_size(64), aligned(8), may_alias));
    typedef i64 places __attribute__((vector_size(64)));
};

template <>
struct Eight<float> {
    typedef float type __attribute__((vector_size(32)));
    typedef float anywhere __attribute__((vector_size(32), aligned(4), may_alias));
    typedef i32 places __attribute__((vector_size(32)));
};

template <class T>
using vec = typename Eight<T>::type;

template <class T>
inline vec<T> load(const T* p) {
    return *reinterpret_cast<const typename Eight<T>::anywhere*>(p);
}

template <class T>
inline void store(T* p, vec<T> v) {
    *reinterpret_cast<typename Eight<T>::anywhere*>(p) = v;
}

template <class T>
inline vec<T> zero() {
    return vec<T>{};
}

#ifdef __clang__
#define MSLSQ_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MSLSQ_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, typename Eight<T>::places{__VA_ARGS__})
#endif

// The sums of eight vectors each, as one vector.
template <class T>
inline vec<T> sums(const vec<T>* v) {
    vec<T> pairs[4], fours[2];
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++)
        pairs[k] = MSLSQ_SHUFFLE(v[2 * k], v[2 * k + 1], 0, 8, 2, 10, 4, 12, 6, 14) +
                   MSLSQ_SHUFFLE(v[2 * k], v[2 * k + 1], 1, 9, 3, 11, 5, 13, 7, 15);
#pragma GCC unroll 2
    for (int k = 0; k < 2; k++)
        fours[k] = MSLSQ_SHUFFLE(pairs[2 * k], pairs[2 * k + 1], 0, 1, 8, 9, 4, 5, 12, 13) +
                   MSLSQ_SHUFFLE(pairs[2 * k], pairs[2 * k + 1], 2, 3, 10, 11, 6, 7, 14, 15);
    return MSLSQ_SHUFFLE(fours[0], fours[1], 0, 1, 2, 3, 8, 9, 10, 11) +
           MSLSQ_SHUFFLE(fours[0], fours[1], 4, 5, 6, 7, 12, 13, 14, 15);
}

inline i64 padded(i64 count) { return (count + TILE - 1) / TILE * TILE; }

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
