// Convolution of rasters with a symmetric kernel, and what pyramids and correlations need of it; mslsq/alignment/sampling.py
// and pyramid.py say what for.

#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include "export.h"
#include "vectors.h"

namespace mslsq {
namespace MSLSQ_TARGET {
namespace {

constexpr i64 STRIP = 64;         // columns at a time: those of 57 rows are 29 KB
constexpr i64 NEAR = i64(1) << 17;  // numbers that a cache of 1 MB holds

// Any integer index folded at the centres of the first and the last of `size` pixels.
inline i64 folded(i64 index, i64 size) {
    if (size == 1) return 0;
    const i64 period = 2 * (size - 1);
    index = (index % period + period) % period;
    return index < size ? index : period - index;
}

// to[i] = sum_t kernel[t] (at(-t)[i] + at(t)[i]), t = 1 .. reach, and kernel[0] at(0)[i].
template <class T, class At>
inline void weighted_sum(At at, const T* kernel, i64 reach, i64 length, T* to) {
    constexpr i64 BLOCK = 4;
    i64 i = 0;
    for (; i + BLOCK * TILE <= length; i += BLOCK * TILE) {
        vec<T> sum[BLOCK];
        const T* middle = at(0) + i;
#pragma GCC unroll 4
        for (int b = 0; b < BLOCK; b++) sum[b] = load(middle + b * TILE) * kernel[0];
        for (i64 t = 1; t <= reach; t++) {
            const T *before = at(-t) + i, *after = at(t) + i;
#pragma GCC unroll 4
            for (int b = 0; b < BLOCK; b++)
                sum[b] = sum[b] + (load(before + b * TILE) + load(after + b * TILE)) * kernel[t];
        }
#pragma GCC unroll 4
        for (int b = 0; b < BLOCK; b++) store(to + i + b * TILE, sum[b]);
    }
    for (; i < length; i++) {
        T sum = at(0)[i] * kernel[0];
        for (i64 t = 1; t <= reach; t++) sum += (at(-t)[i] + at(t)[i]) * kernel[t];
        to[i] = sum;
    }
}

// What `copy_n` makes of so few numbers takes as long as to compute them.
template <class T>
inline void copied(const T* from, i64 count, T* to) {
    i64 i = 0;
    for (; i + TILE <= count; i += TILE) store(to + i, load(from + i));
    for (; i < count; i++) to[i] = from[i];
}

template <class T>
void along_a_row(const T* line, const T* kernel, i64 reach, i64 width, T* to) {
    weighted_sum<T>([line](i64 t) { return line + t; }, kernel, reach, width, to);
}

// each(y, x, have, numbers, again) for the strips of rows first, first + every, .. before last; rows[y] is there for every y
// within reach. Where they all are one and the same row, as those of shares inside a map are, it is summed once, and is the same
// `again`.
template <class T, class Each>
void along_columns(const T* const* rows, const T* kernel, i64 reach, i64 width, i64 first, i64 last, i64 every, Each each) {
    T found[STRIP];
    for (i64 x = 0; x < width; x += STRIP) {
        const i64 have = std::min(STRIP, width - x);
        const T* before = nullptr;
        for (i64 y = first; y < last; y += every) {
            const T* only = rows[y];
            for (i64 t = -reach; t <= reach && only; t++)
                if (rows[y + t] != only) only = nullptr;
            if (!only || only != before) weighted_sum<T>([rows, y, x](i64 t) { return rows[y + t] + x; }, kernel, reach, have, found);
            each(y, x, have, found, only && only == before);
            before = only;
        }
    }
}

template <class T>
void convolved_rows(const T* raster, i64 height, i64 width, const T* kernel, i64 reach, bool mirror, T* to) {
    std::vector<T> line(width + 2 * reach, T(0));
    for (i64 y = 0; y < height; y++) {
        const T* from = raster + y * width;
        std::copy_n(from, width, &line[reach]);
        if (mirror)
            for (i64 t = 1; t <= reach; t++) {
                line[reach - t] = from[folded(-t, width)];
                line[reach + width - 1 + t] = from[folded(width - 1 + t, width)];
            }
        along_a_row(&line[reach], kernel, reach, width, to + y * width);
    }
}

template <class T>
void convolved_columns(const T* raster, i64 height, i64 width, const T* kernel, i64 reach, bool mirror, T* to) {
    const std::vector<T> nothing(width, T(0));
    std::vector<const T*> rows(height + 2 * reach);
    for (i64 y = -reach; y < height + reach; y++) {
        const bool inside = y >= 0 && y < height;
        rows[y + reach] = inside || mirror ? raster + (inside ? y : folded(y, height)) * width : nothing.data();
    }
    along_columns(rows.data() + reach, kernel, reach, width, 0, height, 1,
                  [&](i64 y, i64 x, i64 have, const T* found, bool) { std::copy_n(found, have, to + y * width + x); });
}

// The coefficients of the cubic spline through a line of samples, mirrored at its ends: the inverse of the filter
// (1, 4, 1) / 6 as a recursion there and another back (Unser, 1999). The lines lie beside each other, `count` of them:
// sample i of line k is at line + i step + k apart, and the recursions of all run at once.
template <class T, int Count>
void spline_lines(T* line, i64 size, i64 step, i64 apart) {
    const T pole = T(std::sqrt(3.0) - 2);
    const i64 reach = sizeof(T) == 8 ? 28 : 13;  // |pole|^reach is rounding
    if (size == 1) return;
    T now[Count];
    for (int k = 0; k < Count; k++) now[k] = 0;
    for (i64 i = reach; i >= 0; i--) {
        const T* at = line + folded(i, size) * step;
        for (int k = 0; k < Count; k++) now[k] = 6 * at[k * apart] + pole * now[k];
    }
    for (int k = 0; k < Count; k++) line[k * apart] = now[k];
    for (i64 i = 1; i < size; i++) {
        T* at = line + i * step;
        for (int k = 0; k < Count; k++) at[k * apart] = now[k] = 6 * at[k * apart] + pole * now[k];
    }
    T *last = line + (size - 1) * step, *before = last - step;
    for (int k = 0; k < Count; k++)
        last[k * apart] = now[k] = pole / (pole * pole - 1) * (last[k * apart] + pole * before[k * apart]);
    for (i64 i = size - 2; i >= 0; i--) {
        T* at = line + i * step;
        for (int k = 0; k < Count; k++) at[k * apart] = now[k] = pole * (now[k] - at[k * apart]);
    }
}

template <class T>
void spline_filter(i64 height, i64 width, T* raster) {
    constexpr int MANY = 32, SOME = 8;
    i64 x = 0, y = 0;
    for (; x + MANY <= width; x += MANY) spline_lines<T, MANY>(raster + x, height, width, 1);
    for (; x < width; x++) spline_lines<T, 1>(raster + x, height, width, 1);
    for (; y + SOME <= height; y += SOME) spline_lines<T, SOME>(raster + y * width, width, 1, width);
    for (; y < height; y++) spline_lines<T, 1>(raster + y * width, width, 1, width);
}

// Normalised convolution: what the kernel makes of the data alone, over the share of it that lay on data; 0 where that
// share is below `least`. Outside is no data. Of rows and columns every `every`-th, rows first to last of those.
template <class T>
class MaskedBlur {
    const i64 height, width, reach, every;
    const T* kernel;
    const bool* mask;
    std::vector<T> line;
    std::unique_ptr<T[]> blurred, weight;  // of a strip
    std::vector<i64> like;  // of its rows: the one whose weights they have
    const std::vector<T> nothing;
    std::vector<const T*> rows;  // of -reach to height + reach
    const T least = T(1e-6);

    i64 columns() const { return (width + every - 1) / every; }

    // Numbers of `line` that lie `every` apart: those of one remainder beside each other, `length` for each.
    i64 length() const { return (width + 2 * reach) / every + 1; }
    T* place(i64 k) { return &line[k % every * length() + k / every]; }

    // A row into `line`, behind `reach` zeros; `step` is `every`, known to the compiler where that is 1 or 2.
    template <class Step, class Value>
    void lay(i64 y, bool all, Step step, Value value) {
        const bool* known = mask + y * width;
        for (i64 first = 0; first < step; first++) {
            T* to = place(reach + first);
            if (all)
                for (i64 x = first; x < width; x += step) *to++ = value(y, x);
            else
                for (i64 x = first; x < width; x += step) {
                    const T number = value(y, x);  // whether it is known or not: a choice without a jump
                    *to++ = known[x] ? number : T(0);
                }
        }
    }

    // The rows low to high of a plane, blurred along themselves, every `every`-th column; value(y, x) of what is data.
    template <class Value>
    void blur_rows(i64 low, i64 high, bool shares, Value value) {
        const i64 wide = columns();
        for (i64 y = low; y < high; y++) {
            T* to = &blurred[(y - low) * wide];
            const T*& row = rows[y + reach];
            row = to;
            const bool* known = mask + y * width;
            if (shares && y > low && !std::memcmp(known, known - width, width)) {
                row = rows[y - 1 + reach];
                continue;
            }
            const bool all = !std::memchr(known, 0, width);
            if (every == 1)
                lay(y, all, std::integral_constant<i64, 1>(), value);
            else if (every == 2)
                lay(y, all, std::integral_constant<i64, 2>(), value);
            else
                lay(y, all, every, value);
            weighted_sum<T>([this](i64 t) { return place(reach + t); }, kernel, reach, wide, to);
        }
    }

public:
    MaskedBlur(i64 height, i64 width, const bool* mask, const T* kernel, i64 reach, i64 every)
        : height(height), width(width), reach(reach), every(every), kernel(kernel), mask(mask),
          line(every * length(), T(0)), nothing(width, T(0)), rows(height + 2 * reach, nothing.data()) {}

    // Of rows first to last of the blurred planes, strip by strip: share(place, have, numbers) is called with blur(m) and then
    // smooth(plane, place, have, numbers) with blur(I·m) / blur(m), plane by plane; `place` counts from the row `first`, and
    // lies in a strip of which `begins(place)` has told.
    template <class Plane, class Begins, class Share, class Smooth>
    void strips(i64 count, Plane plane_of, i64 first, i64 last, Begins begins, Share share, Smooth smooth) {
        const i64 tall = std::max(i64(24), NEAR / width - 2 * reach) / every, wide = columns();
        const i64 parts = std::max(i64(1), (last - first + tall - 1) / tall), most = (last - first + parts - 1) / parts;
        T quotients[STRIP];
        like.resize(most);
        blurred.reset(new T[std::min(height, most * every + 2 * reach) * wide]), weight.reset(new T[most * wide]);
        for (i64 begin = first; begin < last; begin += most) {
            const i64 end = std::min(last, begin + most);
            const i64 low = std::max(i64(0), begin * every - reach);
            const i64 high = std::min(height, (end - 1) * every + reach + 1);
            begins((begin - first) * wide, (end - begin) * wide);
            for (i64 plane = -1; plane < count; plane++) {
                const auto from = plane_of(plane < 0 ? 0 : plane);
                if (plane < 0)
                    blur_rows(low, high, true, [](i64, i64) { return T(1); });
                else
                    blur_rows(low, high, false, [&](i64 y, i64 x) { return T(from[y * width + x]); });
                along_columns(rows.data() + reach, kernel, reach, wide, begin * every, (end - 1) * every + 1, every,
                              [&](i64 y, i64 x, i64 have, const T* found, bool again) {
                                  const i64 row = y / every, place = (row - first) * wide + x;
                                  i64& source = like[row - begin];
                                  if (plane < 0) {
                                      source = again ? like[row - begin - 1] : row - begin;
                                      T* own = &weight[source * wide + x];
                                      for (i64 j = 0; j < have && !again; j++) {
                                          const T inverse = 1 / found[j];
                                          own[j] = found[j] > least ? inverse : T(0);
                                      }
                                      share(place, have, found);
                                  } else {
                                      const T* own = &weight[source * wide + x];
                                      for (i64 j = 0; j < have; j++) quotients[j] = found[j] * own[j];
                                      smooth(plane, place, have, quotients);
                                  }
                              });
            }
        }
    }

    void operator()(i64 count, const T* raster, i64 first, i64 last, T* to, T* share) {
        const i64 out = (height + every - 1) / every * columns(), start = first * columns();
        strips(
            count, [&](i64 plane) { return raster + plane * height * width; }, first, last, [](i64, i64) {},
            [&](i64 place, i64 have, const T* found) { copied(found, have, share + start + place); },
            [&](i64 plane, i64 place, i64 have, const T* found) { copied(found, have, to + plane * out + start + place); });
    }
};

// Where `open` is set, blur(I·m) / blur(m) if more than `least` of the kernel lies on data, which clears it there. Pixel by
// pixel: for a few pixels, such as a border.
template <class T>
void fill_some(i64 count, i64 height, i64 width, const T* raster, const bool* mask, i64 reach, const T* kernel, T least, bool* open,
               T* to) {
    for (i64 y = 0; y < height; y++)
        for (i64 x = 0; x < width; x++) {
            if (!open[y * width + x]) continue;
            const i64 top = std::max(i64(0), y - reach), bottom = std::min(height - 1, y + reach);
            const i64 left = std::max(i64(0), x - reach), right = std::min(width - 1, x + reach);
            for (i64 c = 0; c < count; c++) {
                T share = 0, sum = 0;
                for (i64 j = top; j <= bottom; j++) {
                    const T down = kernel[j < y ? y - j : j - y];
                    for (i64 i = left; i <= right; i++) {
                        const i64 at = j * width + i;
                        const T weight = mask[at] ? down * kernel[i < x ? x - i : i - x] : T(0);
                        share += weight, sum += weight * raster[c * height * width + at];
                    }
                }
                if (!(share > least)) break;
                to[(c * height + y) * width + x] = sum / share;
                open[y * width + x] = false;
            }
        }
}

// Of a blurred level: `valid`, where the share of the kernel on data exceeds the strictest of the thresholds that keeps `enough` of
// the data, or else the last of them (how many these are: `kept`); and values where that share is `hollow` or less, if they are
// few, by fill_some. The number of those that remain: then nothing is known of their values.
template <class T>
i64 settle(i64 count, i64 height, i64 width, const bool* mask, i64 across, i64 every, const T* share, i64 thresholds,
           const double* threshold, double enough, T hollow, i64 reach, const T* kernel, T least, T* to, bool* valid, i64* kept) {
    const i64 n = height * width;
    i64 data = 0, holes = 0;
    for (i64 y = 0; y < height; y++) {
        const bool* row = mask + y * every * across;
        if (every == 1)
            data += known_of(width, row);
        else
            for (i64 x = 0; x < width; x++) data += row[x * every];
    }
    T bar = 0;
    for (i64 k = 0; k < thresholds; k++) {
        bar = T(threshold[k]);
        i64 above = 0, hollows = 0;
        for (i64 i = 0; i < n; i++) above += share[i] > bar, hollows += share[i] <= hollow;
        *kept = above, holes = hollows;
        if (double(above) >= enough * double(data)) break;
    }
    for (i64 i = 0; i < n; i++) valid[i] = share[i] > bar;
    if (!holes || holes * (reach + 1) >= n) return holes;
    std::unique_ptr<bool[]> full(new bool[n]), open(new bool[n]);
    for (i64 i = 0; i < n; i++) full[i] = share[i] > hollow, open[i] = !full[i];
    fill_some<T>(count, height, width, to, full.get(), reach, kernel, least, open.get(), to);
    holes = 0;
    for (i64 i = 0; i < n; i++) holes += open[i];
    return holes;
}

// The kernels of a pyramid: of the prefilter, before each halving, and of holes.
template <class T>
struct Widths {
    i64 reach[3];
    const T* kernel[3];
};

// The levels of a map, the finest first and one behind the other in `to` and `valid`, and how many pixels of each are valid. Ends
// before a level with holes that need a wider kernel; the number of those that are done. `numbers` are those of `settle`.
template <class T>
i64 pyramid(i64 count, i64 height, i64 width, const T* raster, const bool* mask, i64 levels, Widths<T> widths, i64 thresholds,
            const double* numbers, T* to, bool* valid, i64* known) {
    std::unique_ptr<T[]> share(new T[height * width]);
    for (i64 level = 0; level < levels; level++) {
        const i64 every = level ? 2 : 1, rows = (height + every - 1) / every, columns = (width + every - 1) / every;
        const int step = level ? 1 : 0;
        MaskedBlur<T>(height, width, mask, widths.kernel[step], widths.reach[step], every)(count, raster, 0, rows, to, share.get());
        const i64 holes = settle<T>(count, rows, columns, mask, width, every, share.get(), thresholds, numbers + 3, numbers[0],
                                    T(numbers[1]), widths.reach[2], widths.kernel[2], T(numbers[2]), to, valid, known + level);
        if (holes) return level;
        raster = to, mask = valid, height = rows, width = columns;
        to += count * rows * columns, valid += rows * columns;
    }
    return levels;
}

// Of two rasters where both hold data: the sums of their squared deviations from their channels' means, and of the
// deviations' products.
template <class T>
void deviations(i64 channels, i64 n, const T* a, const T* b, const bool* mask, double* to, T* means = nullptr) {
    constexpr i64 PIECE = 4096;
    const double count = double(known_of(n, mask));
    to[0] = to[1] = to[2] = 0;
    for (i64 c = 0; c < channels; c++, a += n, b += n) {
        T mean[2] = {0, 0};
        // The first time around the means, then what deviates from them.
        for (int around = 0; around < 2; around++) {
            double total[3] = {0, 0, 0};
            for (i64 first = 0; first < n; first += PIECE) {
                T sums[3][TILE] = {};
                auto add = [&](i64 i, int k) {
                    const T x = mask[i] ? a[i] - mean[0] : T(0), y = mask[i] ? b[i] - mean[1] : T(0);
                    sums[0][k] += around ? x * x : x, sums[1][k] += around ? y * y : y, sums[2][k] += x * y;
                };
                const i64 last = std::min(n, first + PIECE), whole = first + (last - first) / TILE * TILE;
                for (i64 i = first; i < whole; i += TILE)
                    for (int k = 0; k < TILE; k++) add(i + k, k);
                for (i64 i = whole; i < last; i++) add(i, 0);
                for (int s = 0; s < 3; s++)
                    for (int k = 0; k < TILE; k++) total[s] += sums[s][k];
            }
            if (!around)
                for (int s = 0; s < 2; s++) mean[s] = T(total[s] / std::max(count, 1.0));
            if (!around && means) means[2 * c] = mean[0], means[2 * c + 1] = mean[1];
            if (around)
                for (int s = 0; s < 3; s++) to[s] += total[s];
        }
    }
}

template <class T>
void both_deviations(i64 channels, i64 height, i64 width, const T* a, const T* b, const bool* mask, i64 reach,
                     const T* kernel, double* to) {
    const i64 n = height * width;
    std::vector<T> means(2 * channels);
    deviations<T>(channels, n, a, b, mask, to, means.data());
    // Detail has hardly a mean, so that sums of squares lose no digits by what is subtracted of it in the end. It is compared with
    // bounds, and of what differs from the mean single precision will do.
    struct Centred {
        const T* values;
        T mean;
        T operator[](i64 k) const { return values[k] - mean; }
    };
    const double count = double(known_of(n, mask));
    std::vector<double> sums(5 * channels, 0.0);
    std::vector<float> detail, taps(kernel, kernel + reach + 1);  // detail of the first raster, on a strip
    i64 begin = 0;
    MaskedBlur<float>(height, width, mask, taps.data(), reach, 1)
        .strips(
            2 * channels, [&](i64 plane) { return Centred{(plane % 2 ? b : a) + plane / 2 * n, means[plane]}; }, 0, height,
            [&](i64 place, i64 size) { begin = place, detail.resize(size); }, [](i64, i64, const float*) {},
            [&](i64 plane, i64 place, i64 have, const float* found) {
                const Centred from{(plane % 2 ? b : a) + plane / 2 * n + place, means[plane]};
                float *first = detail.data() + (place - begin), second[STRIP], *own = plane % 2 ? second : first;
                for (i64 k = 0; k < have; k++) own[k] = mask[place + k] ? float(from[k] - T(found[k])) : 0.0f;
                if (plane % 2 == 0) return;
                float parts[5][TILE] = {};
                const auto add = [&](i64 k, int j) {
                    parts[0][j] += first[k], parts[1][j] += second[k], parts[2][j] += first[k] * first[k];
                    parts[3][j] += second[k] * second[k], parts[4][j] += first[k] * second[k];
                };
                const i64 whole = have / TILE * TILE;
                for (i64 k = 0; k < whole; k += TILE)
                    for (int j = 0; j < TILE; j++) add(k + j, j);
                for (i64 k = whole; k < have; k++) add(k, 0);
                for (int s = 0; s < 5; s++)
                    for (int j = 0; j < TILE; j++) sums[5 * (plane / 2) + s] += double(parts[s][j]);
            });
    to[3] = to[4] = to[5] = 0;
    for (i64 c = 0; c < channels && count > 0; c++) {
        const double *s = &sums[5 * c];
        to[3] += s[2] - s[0] * s[0] / count, to[4] += s[3] - s[1] * s[1] / count, to[5] += s[4] - s[0] * s[1] / count;
    }
}

}  // namespace

// raster and to: (count, height, width). kernel: its middle and what follows, reach + 1 numbers. along 1: rows.
#define MSLSQ_DEFINE(T, type)                                                                                        \
    MSLSQ_EXPORT(convolve, type)                                                                                     \
    (i64 count, i64 height, i64 width, const T* raster, i64 reach, const T* kernel, i64 along, i64 mirror, T* to) {  \
        for (i64 k = 0; k < count; k++) {                                                                            \
            const i64 at = k * height * width;                                                                       \
            (along ? convolved_rows<T> : convolved_columns<T>)(raster + at, height, width, kernel, reach, mirror, to + at); \
        }                                                                                                            \
    }                                                                                                                \
    /* raster (count, height, width): in place */                                                                    \
    MSLSQ_EXPORT(spline_filter, type)                                                                                \
    (i64 count, i64 height, i64 width, T* raster) {                                                                  \
        for (i64 k = 0; k < count; k++) spline_filter<T>(height, width, raster + k * height * width);                \
    }                                                                                                                \
    MSLSQ_EXPORT(masked_blur, type)                                                                                  \
    (i64 count, i64 height, i64 width, const T* raster, const bool* mask, i64 reach, const T* kernel, i64 every,     \
     i64 first, i64 last, T* smooth, T* share) {                                                                     \
        MaskedBlur<T>(height, width, mask, kernel, reach, every)(count, raster, first, last, smooth, share);         \
    }                                                                                                                \
    /* to: (count, height, width), of which pixels are written that are open; these are then closed */                \
    MSLSQ_EXPORT(fill_some, type)                                                                                    \
    (i64 count, i64 height, i64 width, const T* raster, const bool* mask, i64 reach, const T* kernel,                \
     const double* least, bool* open, T* to) {                                                                       \
        fill_some<T>(count, height, width, raster, mask, reach, kernel, T(*least), open, to);                        \
    }                                                                                                                \
    /* numbers: what is enough, hollow, the least share, and the thresholds; mask: (.., across), every `every`-th pixel; */ \
    /* counts: holes that are left, pixels that are valid */                                                         \
    MSLSQ_EXPORT(settle, type)                                                                                       \
    (i64 count, i64 height, i64 width, const bool* mask, i64 across, i64 every, const T* share, i64 thresholds,      \
     const double* numbers, i64 reach, const T* kernel, T* to, bool* valid, i64* counts) {                           \
        counts[0] = settle<T>(count, height, width, mask, across, every, share, thresholds, numbers + 3, numbers[0], \
                              T(numbers[1]), reach, kernel, T(numbers[2]), to, valid, counts + 1);                   \
    }                                                                                                                \
    /* to, valid: all levels, one behind the other; counts: valid pixels of each, and how many levels are done */     \
    MSLSQ_EXPORT(pyramid, type)                                                                                      \
    (i64 count, i64 height, i64 width, const T* raster, const bool* mask, i64 levels, i64 first, const T* prefilter, \
     i64 reach, const T* halving, i64 wide, const T* filling, i64 thresholds, const double* numbers, T* to,          \
     bool* valid, i64* counts) {                                                                                     \
        counts[levels] = pyramid<T>(count, height, width, raster, mask, levels,                                      \
                                    {{first, reach, wide}, {prefilter, halving, filling}}, thresholds, numbers, to,  \
                                    valid, counts);                                                                  \
    }                                                                                                                \
    MSLSQ_EXPORT(deviations, type)                                                                                   \
    (i64 channels, i64 n, const T* a, const T* b, const bool* mask, double* sums) {                                  \
        deviations<T>(channels, n, a, b, mask, sums);                                                                \
    }                                                                                                                \
    /* `deviations` of two rasters (channels, height, width), and behind them those of their detail */               \
    MSLSQ_EXPORT(both_deviations, type)                                                                              \
    (i64 channels, i64 height, i64 width, const T* a, const T* b, const bool* mask, i64 reach, const T* kernel,      \
     double* sums) {                                                                                                 \
        both_deviations<T>(channels, height, width, a, b, mask, reach, kernel, sums);                                \
    }

MSLSQ_DEFINE(double, f64)
MSLSQ_DEFINE(float, f32)

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
