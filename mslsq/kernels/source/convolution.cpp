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

// Normalised convolution: what the kernel makes of the data alone, over the share of it that lay on data; 0 where that
// is below `least`. Outside is no data.
template <class T>
void normalised(i64 count, i64 height, i64 width, const T* raster, const bool* mask, const T* kernel, i64 reach, T* to,
                T* share) {
    const T least = T(1e-6);
    const i64 size = height * width;
    std::vector<T> masked(size), across(size), weight(size);
    for (i64 i = 0; i < size; i++) masked[i] = mask[i] ? T(1) : T(0);
    along_rows(masked.data(), height, width, kernel, reach, false, across.data());
    along_columns(across.data(), height, width, kernel, reach, false, 0, height, share);
    for (i64 i = 0; i < size; i++) weight[i] = share[i] > least ? 1 / share[i] : T(0);
    for (i64 k = 0; k < count; k++) {
        const T* from = raster + k * size;
        T* smooth = to + k * size;
        for (i64 i = 0; i < size; i++) masked[i] = mask[i] ? from[i] : T(0);
        along_rows(masked.data(), height, width, kernel, reach, false, across.data());
        along_columns(across.data(), height, width, kernel, reach, false, 0, height, smooth);
        for (i64 i = 0; i < size; i++) smooth[i] *= weight[i];
    }
}

// Of two rasters where both hold data: the sums of their squared deviations from their channels' means, and of the
// deviations' products.
template <class T>
void deviations(i64 channels, i64 n, const T* a, const T* b, const bool* mask, double* to) {
    double count = 0;
    for (i64 i = 0; i < n; i++) count += mask[i];
    to[0] = to[1] = to[2] = 0;
    for (i64 c = 0; c < channels; c++, a += n, b += n) {
        constexpr i64 PIECE = 4096;
        double mean_a = 0, mean_b = 0;
        for (i64 first = 0; first < n; first += PIECE) {
            T sum_a[TILE] = {}, sum_b[TILE] = {};
            const i64 last = std::min(n, first + PIECE);
            for (i64 i = first; i + TILE <= last; i += TILE)
                for (int k = 0; k < TILE; k++) {
                    sum_a[k] += mask[i + k] ? a[i + k] : T(0);
                    sum_b[k] += mask[i + k] ? b[i + k] : T(0);
                }
            for (i64 i = last - (last - first) % TILE; i < last; i++)
                if (mask[i]) sum_a[0] += a[i], sum_b[0] += b[i];
            for (int k = 0; k < TILE; k++) mean_a += sum_a[k], mean_b += sum_b[k];
        }
        const T ma = T(mean_a / std::max(count, 1.0)), mb = T(mean_b / std::max(count, 1.0));
        for (i64 first = 0; first < n; first += PIECE) {
            T aa[TILE] = {}, bb[TILE] = {}, ab[TILE] = {};
            const i64 last = std::min(n, first + PIECE);
            for (i64 i = first; i + TILE <= last; i += TILE)
                for (int k = 0; k < TILE; k++) {
                    const T x = mask[i + k] ? a[i + k] - ma : T(0), y = mask[i + k] ? b[i + k] - mb : T(0);
                    aa[k] += x * x, bb[k] += y * y, ab[k] += x * y;
                }
            for (i64 i = last - (last - first) % TILE; i < last; i++)
                if (mask[i]) {
                    const T x = a[i] - ma, y = b[i] - mb;
                    aa[0] += x * x, bb[0] += y * y, ab[0] += x * y;
                }
            for (int k = 0; k < TILE; k++) to[0] += aa[k], to[1] += bb[k], to[2] += ab[k];
        }
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
    }                                                                                                                \
    MSLSQ_EXPORT(masked_blur, type)                                                                                  \
    (i64 count, i64 height, i64 width, const T* raster, const bool* mask, i64 reach, const T* kernel, T* smooth,     \
     T* share) {                                                                                                     \
        normalised<T>(count, height, width, raster, mask, kernel, reach, smooth, share);                             \
    }                                                                                                                \
    MSLSQ_EXPORT(deviations, type)                                                                                   \
    (i64 channels, i64 n, const T* a, const T* b, const bool* mask, double* sums) {                                  \
        deviations<T>(channels, n, a, b, mask, sums);                                                                \
    }

MSLSQ_DEFINE(double, f64)
MSLSQ_DEFINE(float, f32)

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
