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
};

template <>
struct Eight<float> {
    typedef float type __attribute__((vector_size(32)));
    typedef float anywhere __attribute__((vector_size(32), aligned(4), may_alias));
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

template <class T>
inline T sum(vec<T> v) {
    return ((v[0] + v[4]) + (v[2] + v[6])) + ((v[1] + v[5]) + (v[3] + v[7]));
}

inline i64 padded(i64 count) { return (count + TILE - 1) / TILE * TILE; }

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
