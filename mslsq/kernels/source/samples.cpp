// What a placement is judged by, of the samples of one level: spreads of residuals, the noise of a raster, rows that alternate,
// means and details of blocks. mslsq/alignment/estimate.py, noise.py, fields.py, evenness.py, evidence.py and shifts.py say what for.

#include <algorithm>
#include <cstring>
#include <vector>

#include "export.h"
#include "vectors.h"

namespace mslsq {
namespace MSLSQ_TARGET {
namespace {

constexpr i64 FEW = 2048;    // numbers whose median is found by sorting them out
constexpr i64 PROBES = 512;  // of more numbers: those that tell where the median is about,
constexpr i64 MARGIN = 48;   // to four standard errors of their own median

// The number at place (n - 1) / 2 of the sorted ones. Changes their order.
template <class T>
T lower_median(T* values, i64 n) {
    const i64 place = (n - 1) / 2;
    if (n > FEW) {
        T probes[PROBES], *const first = probes + (PROBES / 2 - MARGIN), *const last = probes + (PROBES / 2 + MARGIN);
        for (i64 k = 0; k < PROBES; k++) probes[k] = values[k * (n / PROBES)];
        std::nth_element(probes, first, probes + PROBES);
        std::nth_element(first + 1, last, probes + PROBES);
        const T low = *first, high = *last;
        i64 below = 0, inside = 0;
        for (i64 k = 0; k < n; k++) below += values[k] < low ? 1 : 0, inside += (values[k] >= low) & (values[k] <= high) ? 1 : 0;
        if (below <= place && place < below + inside) {
            std::vector<T> between(inside + 1);
            for (i64 k = 0, at = 0; k < n; k++) {
                between[at] = values[k];
                at += (values[k] >= low) & (values[k] <= high);
            }
            std::nth_element(between.begin(), between.begin() + (place - below), between.begin() + inside);
            return between[place - below];
        }
    }
    std::nth_element(values, values + place, values + n);
    return values[place];
}

// Sums of eight beside each other, so that the compiler makes vectors of them.
template <class T, class Entry>
double summed(i64 n, Entry entry) {
    constexpr i64 PIECE = 4096;
    double total = 0;
    for (i64 first = 0; first < n; first += PIECE) {
        T parts[TILE] = {};
        const i64 last = std::min(n, first + PIECE), whole = first + (last - first) / TILE * TILE;
        for (i64 k = first; k < whole; k += TILE)
            for (int j = 0; j < TILE; j++) parts[j] += entry(k + j);
        for (i64 k = whole; k < last; k++) parts[0] += entry(k);
        for (int j = 0; j < TILE; j++) total += parts[j];
    }
    return total;
}

// Median, median of what differs from it, mean and standard deviation (of n - 1) of n numbers, at least one.
template <class T>
void spread(i64 n, const T* values, double* to) {
    std::vector<T> room(values, values + n);
    const T median = lower_median(room.data(), n);
    for (i64 k = 0; k < n; k++) room[k] = std::fabs(values[k] - median);
    const T mean = T(summed<T>(n, [&](i64 k) { return values[k]; }) / double(n));
    const double squares = summed<T>(n, [&](i64 k) { return (values[k] - mean) * (values[k] - mean); });
    to[0] = median, to[1] = lower_median(room.data(), n), to[2] = mean, to[3] = std::sqrt(squares / double(std::max(n - 1, i64(1))));
}

// gain * map + bias - reference, of every few samples those that are valid; their number.
template <class T>
i64 chosen_residuals(i64 channels, i64 n, const T* map, const T* reference, const bool* valid, i64 every, T gain, T bias, T* to) {
    i64 count = 0;
    for (i64 c = 0; c < channels; c++, map += n, reference += n)
        for (i64 k = 0; k < n; k += every)
            if (valid[k]) to[count++] = gain * map[k] + bias - reference[k];
    return count;
}

// Per channel the median of |second differences along both axes|, of every few rows, where all nine pixels are known; and
// how many these are.
template <class T>
i64 second_differences(i64 channels, i64 height, i64 width, const T* raster, const bool* known, i64 every, double* medians) {
    std::vector<T> down(width), found((height - 3 + every) / every * (width - 2) + 1);
    std::vector<unsigned char> all(width);
    i64 count = 0;
    for (i64 c = 0; c < channels; c++, raster += height * width) {
        count = 0;
        for (i64 y = 0; y + 2 < height; y += every) {
            const T *above = raster + y * width, *at = above + width, *below = at + width;
            const bool *a = known + y * width, *b = a + width, *e = b + width;
            for (i64 x = 0; x < width; x++) down[x] = above[x] - 2 * at[x] + below[x];
            i64 missing = 0;
            for (i64 x = 0; x < width; x++) all[x] = a[x] & b[x] & e[x], missing += 1 - all[x];
            T* to = found.data() + count;
            for (i64 x = 0; x + 2 < width; x++) to[x] = std::fabs(down[x] - 2 * down[x + 1] + down[x + 2]);
            i64 kept = missing ? 0 : width - 2;
            for (i64 x = 0; missing && x + 2 < width; x++) {
                to[kept] = to[x];
                kept += all[x] & all[x + 1] & all[x + 2];
            }
            count += kept;
        }
        medians[c] = count ? double(lower_median(found.data(), count)) : 0;
    }
    return count;
}

// Of rows y = 0, every, .. and the two below each, where all three are known: how far the one between is aside of the mean of
// the two (a), half of what these differ by (d, down) and half a difference of their mean (c, across), both turned over where y is
// odd. Added up: a², d², c², c·d, c·a, d·a, and how many samples these are of each channel.
template <class T>
void rows_aside(i64 channels, i64 height, i64 width, const T* raster, const bool* known, i64 every, double* to) {
    std::vector<double> around(width);
    std::vector<unsigned char> all(width);
    std::fill_n(to, 7, 0.0);
    for (i64 y = 0; y + 2 < height; y += every) {
        const bool *a = known + y * width, *b = a + width, *e = b + width;
        i64 seen = 0;
        for (i64 x = 1; x + 1 < width; x++) all[x] = a[x] & b[x] & e[x], seen += all[x];
        to[6] += double(seen);
        const double half = y % 2 ? -0.5 : 0.5;
        for (i64 c = 0; c < channels && seen; c++) {
            const T *first = raster + (c * height + y) * width, *between = first + width, *second = between + width;
            for (i64 x = 0; x < width; x++) around[x] = 0.5 * (double(first[x]) + double(second[x]));
            double sums[6][TILE] = {};
            const auto add = [&](i64 x, int k) {
                const bool use = all[x];
                const double aside = use ? double(between[x]) - around[x] : 0.0;
                const double down = use ? half * (double(second[x]) - double(first[x])) : 0.0;
                const double across = use ? half * (around[x + 1] - around[x - 1]) : 0.0;
                sums[0][k] += aside * aside, sums[1][k] += down * down, sums[2][k] += across * across;
                sums[3][k] += across * down, sums[4][k] += across * aside, sums[5][k] += down * aside;
            };
            i64 x = 1;
            for (; x + TILE < width; x += TILE)
                for (int k = 0; k < TILE; k++) add(x + k, k);
            for (; x + 1 < width; x++) add(x, 0);
            for (int s = 0; s < 6; s++)
                for (int k = 0; k < TILE; k++) to[s] += sums[s][k];
        }
    }
}

// How many samples of a mask are true, and the sums of their rows and columns.
void centroid(i64 rows, i64 columns, const bool* mask, i64* to) {
    std::vector<i32> below(columns, 0);
    to[0] = to[1] = to[2] = 0;
    for (i64 y = 0; y < rows; y++) {
        const bool* row = mask + y * columns;
        i32 count = 0;
        for (i64 x = 0; x < columns; x++) count += row[x], below[x] += row[x];
        to[0] += count, to[1] += y * count;
    }
    for (i64 x = 0; x < columns; x++) to[2] += x * below[x];
}

// Of the residuals of valid samples the sum of their squares, and that of count · mean² over blocks of `side`.
template <class T>
void means_of_blocks(i64 channels, i64 rows, i64 columns, const T* map, const T* reference, const bool* valid, i64 side, T gain,
                     T bias, double* to) {
    const i64 across = (columns + side - 1) / side;
    std::vector<double> sums(across), counts(across);
    to[0] = to[1] = 0;
    for (i64 c = 0; c < channels; c++, map += rows * columns, reference += rows * columns)
        for (i64 top = 0; top < rows; top += side) {
            std::fill(sums.begin(), sums.end(), 0.0);
            std::fill(counts.begin(), counts.end(), 0.0);
            for (i64 y = top; y < std::min(rows, top + side); y++)
                for (i64 block = 0; block < across; block++) {
                    T sum = 0, squares = 0;
                    i32 count = 0;
                    const i64 first = y * columns + block * side, last = y * columns + std::min(columns, (block + 1) * side);
                    for (i64 k = first; k < last; k++) {
                        const T r = valid[k] ? gain * map[k] + bias - reference[k] : T(0);
                        sum += r, squares += r * r, count += valid[k];
                    }
                    sums[block] += sum, counts[block] += count, to[1] += squares;
                }
            for (i64 block = 0; block < across; block++) to[0] += sums[block] * sums[block] / std::max(counts[block], 1.0);
        }
}

// 1, x, y, x², xy and y² over a block, x and y from -1 to 1.
constexpr int SURFACES = 6;

struct Surfaces {
    std::vector<double> value;  // surface by surface, row by row

    explicit Surfaces(i64 side) : value(SURFACES * side * side) {
        for (i64 row = 0; row < side; row++)
            for (i64 column = 0; column < side; column++) {
                const double x = 2.0 * double(column) / double(side - 1) - 1, y = 2.0 * double(row) / double(side - 1) - 1;
                const double all[SURFACES] = {1, x, y, x * x, x * y, y * y};
                for (int k = 0; k < SURFACES; k++) value[(k * side + row) * side + column] = all[k];
            }
    }
};

// The Cholesky factor L of A = L Lᵀ, in place.
void factor_symmetric(double (*A)[SURFACES]) {
    for (int j = 0; j < SURFACES; j++) {
        for (int k = 0; k < j; k++)
            for (int i = j; i < SURFACES; i++) A[i][j] -= A[i][k] * A[j][k];
        const double root = std::sqrt(A[j][j]);
        for (int i = j; i < SURFACES; i++) A[i][j] /= root;
    }
}

// x of L Lᵀ x = b, in place.
void solve_symmetric(const double (*A)[SURFACES], double* b) {
    for (int i = 0; i < SURFACES; i++) {
        for (int k = 0; k < i; k++) b[i] -= A[i][k] * b[k];
        b[i] /= A[i][i];
    }
    for (int i = SURFACES - 1; i >= 0; i--) {
        for (int k = i + 1; k < SURFACES; k++) b[i] -= A[k][i] * b[k];
        b[i] /= A[i][i];
    }
}

// The products of two maps' slopes over a block, added up: to += xx, (xy + yx) / 2, yy. Slopes are those of the middles between
// four valid samples. Eight beside each other at once: what lies behind the last of a row is read, and does not count.
void common_slopes(i64 side, const double* known, const double* one, const double* other, double* to) {
    double xx[TILE] = {}, xy[TILE] = {}, yy[TILE] = {};
    for (i64 y = 0; y + 1 < side; y++)
        for (i64 x = 0; x < side; x += TILE) {
            const double *k = known + y * side + x, *m = one + y * side + x, *n = other + y * side + x;
            for (int j = 0; j < TILE; j++) {
                const double inside = x + j + 1 < side ? 0.25 : 0.0;
                const double use = inside * k[j] * k[j + 1] * k[j + side] * k[j + side + 1];
                const double falling = m[j + side + 1] - m[j], rising = m[j + 1] - m[j + side];
                const double sinking = n[j + side + 1] - n[j], climbing = n[j + 1] - n[j + side];
                const double right = falling + rising, down = falling - rising, across = sinking + climbing, along = sinking - climbing;
                xx[j] += use * right * across, xy[j] += 0.5 * use * (right * along + down * across), yy[j] += use * down * along;
            }
        }
    for (int j = 0; j < TILE; j++) to[0] += xx[j], to[1] += xy[j], to[2] += yy[j];
}

// Block by block, row by row: how many of its samples are valid, and of both maps' detail, which is what a quadratic surface,
// fitted to the valid samples, leaves, the energies, the product and the products of slopes, channels added up. Only of blocks
// with `least` samples.
template <class T>
void block_details(i64 channels, i64 rows, i64 columns, const T* map, const T* reference, const bool* valid, i64 side, double least,
                   double* to) {
    const Surfaces surfaces(side);
    const i64 size = side * side, down = (rows + side - 1) / side, across = (columns + side - 1) / side;
    std::vector<double> room(3 * size + TILE);
    double *known = room.data(), of_full[SURFACES][SURFACES], normal[SURFACES][SURFACES];  // their factors
    const auto normal_of = [&](const double* use, double(*to)[SURFACES]) {
        for (int a = 0; a < SURFACES; a++)
            for (int b = 0; b <= a; b++) {
                const double *one = &surfaces.value[a * size], *other = &surfaces.value[b * size];
                to[a][b] = summed<double>(size, [&](i64 k) { return one[k] * other[k] * use[k]; });
            }
        for (int a = 0; a < SURFACES; a++) to[a][a] += 1e-9 * double(size);  // few samples may not determine a surface
        factor_symmetric(to);
    };
    std::fill_n(known, size, 1.0);
    normal_of(known, of_full);
    for (i64 block = 0; block < down * across; block++, to += 7) {
        const i64 top = block / across * side, left = block % across * side;
        const i64 high = std::min(side, rows - top), wide = std::min(side, columns - left);
        double count = 0;
        std::fill(room.begin(), room.end(), 0.0);
        for (i64 y = 0; y < high; y++)
            for (i64 x = 0; x < wide; x++) {
                const double use = valid[(top + y) * columns + left + x];
                known[y * side + x] = use, count += use;
            }
        std::fill_n(to, 7, 0.0), to[0] = count;
        if (count < least) continue;
        if (count != double(size)) normal_of(known, normal);
        for (i64 c = 0; c < channels; c++) {
            for (int which = 0; which < 2; which++) {
                const T* from = (which ? reference : map) + c * rows * columns;
                double *detail = known + (1 + which) * size, fitted[SURFACES];
                for (i64 y = 0; y < high; y++)
                    for (i64 x = 0; x < wide; x++)
                        detail[y * side + x] = known[y * side + x] * double(from[(top + y) * columns + left + x]);
                for (int a = 0; a < SURFACES; a++) {
                    const double* one = &surfaces.value[a * size];
                    fitted[a] = summed<double>(size, [&](i64 k) { return one[k] * detail[k]; });
                }
                solve_symmetric(count == double(size) ? of_full : normal, fitted);
                for (i64 k = 0; k < size; k++) {
                    double surface = 0;
                    for (int a = 0; a < SURFACES; a++) surface += fitted[a] * surfaces.value[a * size + k];
                    detail[k] -= known[k] * surface;
                }
            }
            const double *one = known + size, *other = one + size;
            to[1] += summed<double>(size, [&](i64 k) { return one[k] * one[k]; });
            to[2] += summed<double>(size, [&](i64 k) { return other[k] * other[k]; });
            to[3] += summed<double>(size, [&](i64 k) { return one[k] * other[k]; });
            common_slopes(side, known, one, other, to + 4);
        }
    }
}

// What a blur takes away of an image, cut at three standard deviations, of unit variance over the mask, zero outside.
template <class T>
void whitened(i64 n, const T* image, const T* smooth, const bool* mask, T* to) {
    const double count = std::max(summed<double>(n, [&](i64 k) { return mask[k] ? 1.0 : 0.0; }), 1.0);
    for (i64 k = 0; k < n; k++) to[k] = mask[k] ? image[k] - smooth[k] : T(0);
    T spread = 0;
    for (int around = 0; around < 2; around++) {
        const T mean = T(summed<T>(n, [&](i64 k) { return to[k]; }) / count);
        for (i64 k = 0; k < n; k++) to[k] = mask[k] ? to[k] - mean : T(0);
        spread = T(std::sqrt(summed<T>(n, [&](i64 k) { return to[k] * to[k]; }) / count));
        const T most = 3 * spread;
        for (i64 k = 0; k < n; k++) to[k] = to[k] < -most ? -most : to[k] > most ? most : to[k];
    }
    for (i64 k = 0; k < n; k++) to[k] /= spread > 0 ? spread : T(1);
}

// What is to be known of a map before it is used: which samples are finite in all channels and not masked, how many, and mean,
// standard deviation, least and largest of the numbers there.
template <class T>
void survey(i64 channels, i64 n, const T* values, bool* known, double* to) {
    // 0 x is no number where x is none: most maps have none such, and are asked no more
    double sum = 0, squares = 0;
    const auto add = [&](bool every) {
        sum = 0;
        for (i64 c = 0; c < channels; c++) {
            const T* plane = values + c * n;
            sum += every ? summed<T>(n, [&](i64 k) { return plane[k]; }) : summed<T>(n, [&](i64 k) { return known[k] ? plane[k] : T(0); });
        }
        return std::isfinite(sum);
    };
    const bool open = !std::memchr(known, 0, n), summed_up = open && add(true);  // then all are finite
    const bool finite = summed_up || summed<T>(channels * n, [&](i64 k) { return values[k] * T(0); }) == 0;
    for (i64 c = 0; c < channels && !finite; c++)
        for (i64 k = 0; k < n; k++) known[k] &= std::fabs(values[c * n + k]) <= std::numeric_limits<T>::max();
    const i64 count = known_of(n, known);
    const bool all = count == n;
    const double numbers = double(count * channels);
    T least = std::numeric_limits<T>::infinity(), largest = -least;
    if (!summed_up) add(all);
    const T mean = T(sum / std::max(numbers, 1.0));
    for (i64 c = 0; c < channels; c++) {
        const T* plane = values + c * n;
        const auto square = [&](i64 k) { return (plane[k] - mean) * (plane[k] - mean); };
        squares += all ? summed<T>(n, square) : summed<T>(n, [&](i64 k) { return known[k] ? square(k) : T(0); });
        T low[TILE], high[TILE];
        std::fill_n(low, TILE, least);
        std::fill_n(high, TILE, largest);
        const auto see = [&](i64 k, int j) {
            const bool use = all || known[k];
            low[j] = use && plane[k] < low[j] ? plane[k] : low[j], high[j] = use && plane[k] > high[j] ? plane[k] : high[j];
        };
        const i64 whole = n / TILE * TILE;
        if (all)
            for (i64 k = 0; k < whole; k += TILE)
                for (int j = 0; j < TILE; j++)
                    low[j] = plane[k + j] < low[j] ? plane[k + j] : low[j], high[j] = plane[k + j] > high[j] ? plane[k + j] : high[j];
        for (i64 k = all ? whole : 0; k < n; k++) see(k, 0);
        least = *std::min_element(low, low + TILE), largest = *std::max_element(high, high + TILE);
    }
    to[0] = double(count), to[1] = mean, to[2] = std::sqrt(squares / (numbers - 1)), to[3] = least, to[4] = largest;
}

}  // namespace

#define MSLSQ_DEFINE(T, type)                                                                                         \
    /* to: median, median of |values - median|, mean, standard deviation */                                           \
    MSLSQ_EXPORT(spread, type)(i64 n, const T* values, double* to) { spread<T>(n, values, to); }                      \
    /* map, reference (channels, n); values: gain, bias; to: room for all, count: how many there are */               \
    MSLSQ_EXPORT(chosen_residuals, type)                                                                              \
    (i64 channels, i64 n, const T* map, const T* reference, const bool* valid, i64 every, const double* values, T* to, \
     i64* count) {                                                                                                    \
        *count = chosen_residuals<T>(channels, n, map, reference, valid, every, T(values[0]), T(values[1]), to);      \
    }                                                                                                                 \
    /* the same, and `spread` of them; to: the four figures of `spread`, and how many residuals there are */       \
    MSLSQ_EXPORT(residual_spread, type)                                                                               \
    (i64 channels, i64 n, const T* map, const T* reference, const bool* valid, i64 every, const double* values,       \
     double* to) {                                                                                                    \
        std::vector<T> chosen(channels * ((n + every - 1) / every));                                                  \
        to[4] = double(chosen_residuals<T>(channels, n, map, reference, valid, every, T(values[0]), T(values[1]), chosen.data())); \
        if (to[4] > 0) spread<T>(i64(to[4]), chosen.data(), to);                                                      \
    }                                                                                                                 \
    MSLSQ_EXPORT(second_differences, type)                                                                            \
    (i64 channels, i64 height, i64 width, const T* raster, const bool* known, i64 every, double* medians, i64* count) { \
        *count = second_differences<T>(channels, height, width, raster, known, every, medians);                       \
    }                                                                                                                 \
    /* to: sums of aside², down², across², across · down, across · aside, down · aside, and how many samples */           \
    MSLSQ_EXPORT(rows_aside, type)                                                                                    \
    (i64 channels, i64 height, i64 width, const T* raster, const bool* known, i64 every, double* to) {                \
        rows_aside<T>(channels, height, width, raster, known, every, to);                                             \
    }                                                                                                                 \
    MSLSQ_EXPORT(means_of_blocks, type)                                                                               \
    (i64 channels, i64 rows, i64 columns, const T* map, const T* reference, const bool* valid, i64 side,              \
     const double* values, double* to) {                                                                              \
        means_of_blocks<T>(channels, rows, columns, map, reference, valid, side, T(values[0]), T(values[1]), to);     \
    }                                                                                                                 \
    /* to (blocks, 7): valid samples, energy of the map's detail, of the reference's, their product, their slopes' */  \
    MSLSQ_EXPORT(block_details, type)                                                                                 \
    (i64 channels, i64 rows, i64 columns, const T* map, const T* reference, const bool* valid, i64 side,              \
     const double* least, double* to) {                                                                               \
        block_details<T>(channels, rows, columns, map, reference, valid, side, *least, to);                           \
    }                                                                                                                 \
    MSLSQ_EXPORT(whitened, type)(i64 n, const T* image, const T* smooth, const bool* mask, T* to) {                   \
        whitened<T>(n, image, smooth, mask, to);                                                                      \
    }                                                                                                                 \
    /* known: true where no mask says otherwise, and then where numbers are; to: count, mean, deviation, extremes */  \
    MSLSQ_EXPORT(survey, type)(i64 channels, i64 n, const T* values, bool* known, double* to) {                       \
        survey<T>(channels, n, values, known, to);                                                                    \
    }

MSLSQ_DEFINE(double, f64)
MSLSQ_DEFINE(float, f32)

// to: count, and the sums of rows and columns
MSLSQ_EXPORT(centroid, any)(i64 rows, i64 columns, const bool* mask, i64* to) { centroid(rows, columns, mask, to); }

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
