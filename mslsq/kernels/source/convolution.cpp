// Convolution of rasters with a symmetric kernel along one axis; mslsq/alignment/sampling.py says what for.

#include <algorithm>
#include <vector>

#include "export.h"
#include "vectors.h"

namespace mslsq {
namespace MSLSQ_TARGET {
namespace {

// Any integer index folded at the centres of the first and the last of `size` pixels.
inline i64 folded(i64 index, i64 size) {
    if (size == 1) return 0;
    const i64 period = 2 * (size - 1);
    index = (index % period + period) % period;
    return index < size ? index : period - index;
}

// to[i] = sum_t kernel[t] (before[t][i] + after[t][i]), t = 1 .. reach, and kernel[0] before[0][i].
template <class T>
void weighted_sum(const T* const* before, const T* const* after, const T* kernel, i64 reach, i64 length, T* to) {
    constexpr i64 BLOCK = 4;
    i64 i = 0;
    for (; i + BLOCK * TILE <= length; i += BLOCK * TILE) {
        vec<T> sum[BLOCK];
#pragma GCC unroll 4
        for (int b = 0; b < BLOCK; b++) sum[b] = load(before[0] + i + b * TILE) * kernel[0];
        for (i64 t = 1; t <= reach; t++)
#pragma GCC unroll 4
            for (int b = 0; b < BLOCK; b++)
                sum[b] = sum[b] + (load(before[t] + i + b * TILE) + load(after[t] + i + b * TILE)) * kernel[t];
#pragma GCC unroll 4
        for (int b = 0; b < BLOCK; b++) store(to + i + b * TILE, sum[b]);
    }
    for (; i < length; i++) {
        T sum = before[0][i] * kernel[0];
        for (i64 t = 1; t <= reach; t++) sum += (before[t][i] + after[t][i]) * kernel[t];
        to[i] = sum;
    }
}

template <class T>
void along_rows(const T* raster, i64 height, i64 width, const T* kernel, i64 reach, bool mirror, T* to) {
    std::vector<T> line(width + 2 * reach, T(0));
    std::vector<const T*> before(reach + 1), after(reach + 1);
    for (i64 t = 0; t <= reach; t++) before[t] = &line[reach - t], after[t] = &line[reach + t];
    for (i64 y = 0; y < height; y++) {
        const T* from = raster + y * width;
        std::copy_n(from, width, &line[reach]);
        if (mirror)
            for (i64 t = 1; t <= reach; t++) {
                line[reach - t] = from[folded(-t, width)];
                line[reach + width - 1 + t] = from[folded(width - 1 + t, width)];
            }
        weighted_sum(before.data(), after.data(), kernel, reach, width, to + y * width);
    }
}

template <class T>
void along_columns(const T* raster, i64 height, i64 width, const T* kernel, i64 reach, bool mirror, i64 first, i64 last,
                   T* to) {
    const std::vector<T> nothing(width, T(0));
    std::vector<const T*> before(reach + 1), after(reach + 1);
    auto row = [&](i64 y) {
        if (y >= 0 && y < height) return raster + y * width;
        return mirror ? raster + folded(y, height) * width : nothing.data();
    };
    for (i64 y = first; y < last; y++) {
        for (i64 t = 0; t <= reach; t++) before[t] = row(y - t), after[t] = row(y + t);
        weighted_sum(before.data(), after.data(), kernel, reach, width, to + y * width);
    }
}

}  // namespace

// raster and to: (count, height, width). kernel: its middle and what follows, reach + 1 numbers. along 1: rows.
#define MSLSQ_DEFINE(T, type)                                                                                        \
    MSLSQ_EXPORT(convolve, type)                                                                                     \
    (i64 count, i64 height, i64 width, const T* raster, i64 reach, const T* kernel, i64 along, i64 mirror, T* to) {  \
        for (i64 k = 0; k < count; k++) {                                                                            \
            const i64 at = k * height * width;                                                                       \
            if (along)                                                                                               \
                along_rows<T>(raster + at, height, width, kernel, reach, mirror, to + at);                           \
            else                                                                                                     \
                along_columns<T>(raster + at, height, width, kernel, reach, mirror, 0, height, to + at);             \
        }                                                                                                            \
    }

MSLSQ_DEFINE(double, f64)
MSLSQ_DEFINE(float, f32)

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
