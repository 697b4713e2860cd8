// Vectors of eight numbers, in the registers of the processor that is compiled for.
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

// The vector registers of the instruction set: their bytes, and how many there are.
#if defined(__AVX512F__)
constexpr int REGISTER_BYTES = 64, REGISTERS = 32;
#elif defined(__AVX2__)
constexpr int REGISTER_BYTES = 32, REGISTERS = 16;
#elif defined(__aarch64__)
constexpr int REGISTER_BYTES = 16, REGISTERS = 32;
#else
constexpr int REGISTER_BYTES = 16, REGISTERS = 16;
#endif

// Numbers of one register, and of the part of it that eight numbers need.
template <class T>
constexpr int FULL = REGISTER_BYTES / int(sizeof(T));
template <class T>
constexpr int WIDTH = FULL<T> < TILE ? FULL<T> : TILE;

template <class T, int W>
struct Register;

template <int W>
struct Register<double, W> {
    typedef double type __attribute__((vector_size(W * 8)));
    typedef double anywhere __attribute__((vector_size(W * 8), aligned(8), may_alias));
    typedef i64 places __attribute__((vector_size(W * 8)));
};

template <int W>
struct Register<float, W> {
    typedef float type __attribute__((vector_size(W * 4)));
    typedef float anywhere __attribute__((vector_size(W * 4), aligned(4), may_alias));
    typedef i32 places __attribute__((vector_size(W * 4)));
};

template <class T, int W = WIDTH<T>>
using reg = typename Register<T, W>::type;

template <int W, class T>
inline reg<T, W> load_register(const T* p) {
    return *reinterpret_cast<const typename Register<T, W>::anywhere*>(p);
}

template <int W, class T>
inline void store_register(T* p, reg<T, W> v) {
    *reinterpret_cast<typename Register<T, W>::anywhere*>(p) = v;
}

// Eight numbers in as many registers as they need. A compiler that is given one vector of 64 bytes keeps it in memory
// where the registers are smaller: four times slower than this.
template <class T>
struct vec {
    static constexpr int N = TILE / WIDTH<T>;
    reg<T> part[N];

    T operator[](int i) const { return part[i / WIDTH<T>][i % WIDTH<T>]; }
    void set(int i, T value) { part[i / WIDTH<T>][i % WIDTH<T>] = value; }
};

#define MSLSQ_EACH _Pragma("GCC unroll 4") for (int n = 0; n < vec<T>::N; n++)

template <class T>
inline vec<T> load(const T* p) {
    vec<T> v;
    MSLSQ_EACH v.part[n] = load_register<WIDTH<T>>(p + n * WIDTH<T>);
    return v;
}

template <class T>
inline void store(T* p, const vec<T>& v) {
    MSLSQ_EACH store_register<WIDTH<T>>(p + n * WIDTH<T>, v.part[n]);
}

template <class T>
inline vec<T> operator+(vec<T> a, const vec<T>& b) {
    MSLSQ_EACH a.part[n] += b.part[n];
    return a;
}

template <class T>
inline vec<T> operator-(vec<T> a, const vec<T>& b) {
    MSLSQ_EACH a.part[n] -= b.part[n];
    return a;
}

template <class T>
inline vec<T> operator*(vec<T> a, const vec<T>& b) {
    MSLSQ_EACH a.part[n] *= b.part[n];
    return a;
}

template <class T>
inline vec<T> operator*(vec<T> a, T b) {
    MSLSQ_EACH a.part[n] *= b;
    return a;
}

#ifdef __clang__
#define MSLSQ_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define MSLSQ_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, typename Register<T, W>::places{__VA_ARGS__})
#endif

// The sums of W registers of W numbers each, as one register.
template <class T, int W>
inline reg<T, W> sums(const reg<T, W>* v) {
    reg<T, W> pairs[W / 2];
    if constexpr (W == 2) {
        return MSLSQ_SHUFFLE(v[0], v[1], 0, 2) + MSLSQ_SHUFFLE(v[0], v[1], 1, 3);
    } else if constexpr (W == 4) {
#pragma GCC unroll 2
        for (int k = 0; k < 2; k++)
            pairs[k] = MSLSQ_SHUFFLE(v[2 * k], v[2 * k + 1], 0, 4, 2, 6) +
                       MSLSQ_SHUFFLE(v[2 * k], v[2 * k + 1], 1, 5, 3, 7);
        return MSLSQ_SHUFFLE(pairs[0], pairs[1], 0, 1, 4, 5) + MSLSQ_SHUFFLE(pairs[0], pairs[1], 2, 3, 6, 7);
    } else {
        reg<T, W> fours[2];
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
}

// The sums of eight vectors each, as one vector.
template <class T>
inline vec<T> sums(const vec<T>* v) {
    constexpr int W = WIDTH<T>;
    vec<T> result;
    MSLSQ_EACH {
        reg<T> own[W];
#pragma GCC unroll 8
        for (int k = 0; k < W; k++) {
            own[k] = v[n * W + k].part[0];
#pragma GCC unroll 3
            for (int m = 1; m < vec<T>::N; m++) own[k] += v[n * W + k].part[m];
        }
        result.part[n] = sums<T, W>(own);
    }
    return result;
}

// While one of these lives, results too small for a normal number are zero. Fill-in decays to such numbers (in float32 at
// 1e-38), and on many processors each of them costs a hundred times an ordinary one. Where asked (and on ARM always) such
// operands count as zero, too.
class FlushToZero {
#if defined(__x86_64__)
    static constexpr unsigned FLUSH = 1u << 15, OPERANDS = 1u << 6;
    const unsigned before = __builtin_ia32_stmxcsr();

public:
    explicit FlushToZero(bool operands = false) {
        __builtin_ia32_ldmxcsr(before | FLUSH | (operands ? OPERANDS : 0));
    }
    ~FlushToZero() { __builtin_ia32_ldmxcsr(before); }
#elif defined(__aarch64__)
    static constexpr std::uint64_t FLUSH = std::uint64_t{1} << 24;
    std::uint64_t before;

    static void set(std::uint64_t control) { asm volatile("msr fpcr, %0" : : "r"(control) : "memory"); }

public:
    explicit FlushToZero(bool = false) {
        asm volatile("mrs %0, fpcr" : "=r"(before));
        set(before | FLUSH);
    }
    ~FlushToZero() { set(before); }
#endif
};

// How many of n are true: eight bytes at once, which are 0 or 1, in a fortieth of the time of a loop over them.
inline i64 known_of(i64 n, const bool* mask) {
    i64 count = 0, i = 0;
    for (; i + 8 <= n; i += 8) {
        std::uint64_t eight;
        std::memcpy(&eight, mask + i, 8);
        count += i64(eight * 0x0101010101010101u >> 56);
    }
    for (; i < n; i++) count += mask[i];
    return count;
}

inline i64 padded(i64 count) { return (count + TILE - 1) / TILE * TILE; }

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
