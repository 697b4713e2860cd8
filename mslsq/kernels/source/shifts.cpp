// The masked correlation of two maps at every shift: sums over what both know, their scores, and the peaks of these.
// mslsq/alignment/shifts.py and rivals.py say what for.

#include <algorithm>
#include <vector>

#include "export.h"
#include "vectors.h"

namespace mslsq {
namespace MSLSQ_TARGET {
namespace {

// Rows top to bottom and columns left to right; the last are within.
struct Box {
    i64 top, bottom, left, right;
};

// The rectangle that holds all that is not zero, if nothing within it is: bottom < top if there is none such.
template <class T>
Box solid_box(i64 height, i64 width, const T* mask) {
    const auto set = [](T x) { return x != T(0); };
    const T *end = mask + height * width, *first = std::find_if(mask, end, set);
    const Box none{0, -1, 0, -1};
    if (first == end) return none;
    const i64 top = (first - mask) / width, left = (first - mask) % width;
    const T *model = mask + top * width, *after = std::find_if_not(first, model + width, set);
    if (std::find_if(after, model + width, set) != model + width) return none;
    i64 below = top + 1;
    while (below < height && std::equal(model, model + width, mask + below * width)) below++;
    if (std::find_if(mask + below * width, end, set) != end) return none;
    return {top, below - 1, left, i64(after - model) - 1};
}

// to[d] = the sum of values(u + d) over the box, or of values(u - d), of all shifts d: rows and columns of them, of which those
// from `own` on are negative and have wrapped around. From sums over all above and to the left (Crow, 1984).
template <class T>
void box_sums(i64 height, i64 width, const T* values, Box box, bool backwards, i64 rows, i64 columns, i64 own_rows, i64 own_columns,
              T* to) {
    std::vector<double> sums((height + 1) * (width + 1), 0.0), strip(width + 1);
    for (i64 y = 0; y < height; y++) {
        const T* from = values + y * width;
        const double* above = &sums[y * (width + 1)];
        double *here = &sums[(y + 1) * (width + 1)], along = 0;
        for (i64 x = 0; x < width; x++) along += double(from[x]), here[x + 1] = above[x + 1] + along;
    }
    // Of a shift along one axis: the first of the box, and the one behind its last, as far as they are within.
    struct Reach {
        i64 first, end;
    };
    const auto reach = [backwards](i64 k, i64 own, i64 count, i64 low, i64 high, i64 size) {
        const i64 shift = (k < own ? k : k - count) * (backwards ? -1 : 1);
        const auto within = [size](i64 at) { return std::min(std::max(at, i64(0)), size); };
        return Reach{within(low + shift), within(high + 1 + shift)};
    };
    std::vector<Reach> across(columns);
    for (i64 x = 0; x < columns; x++) across[x] = reach(x, own_columns, columns, box.left, box.right, width);
    for (i64 y = 0; y < rows; y++, to += columns) {
        const Reach down = reach(y, own_rows, rows, box.top, box.bottom, height);
        const double *above = &sums[down.first * (width + 1)], *below = &sums[down.end * (width + 1)];
        for (i64 x = 0; x <= width; x++) strip[x] = below[x] - above[x];
        for (i64 x = 0; x < columns; x++) to[x] = T(strip[across[x].end] - strip[across[x].first]);
    }
}

// Of every shift, from sums over the samples that both maps know there (how many, of one map's values and of the other's, of
// their squares, and of the products): Fisher's z of the correlation, times the root of the share of the smaller map; -1 where
// that share is too little.
template <class T>
void scores_of_sums(i64 n, const T* counts, const T* ones, const T* others, const T* ones_squared, const T* others_squared,
                    const T* products, T smaller, T least, T* to) {
    constexpr T TEXTURE = T(0.01), HIGHEST = T(0.999), TINY = T(1e-12);
    for (i64 k = 0; k < n; k++) {
        const T count = std::max(counts[k], T(0)), safe = std::max(count, T(1)), share = count / smaller;
        const T one = ones_squared[k] - ones[k] * ones[k] / safe, other = others_squared[k] - others[k] * others[k] / safe;
        const bool textured = (one > TEXTURE * count) & (other > TEXTURE * count);
        const T found = (products[k] - ones[k] * others[k] / safe) / std::sqrt(std::max(one * other, TINY));
        const T bounded = textured ? std::min(std::max(found, -HIGHEST), HIGHEST) : T(0);
        to[k] = share >= least ? (1 + bounded) / (1 - bounded) : T(-1);  // -1: no logarithm
    }
    for (i64 k = 0; k < n; k++)
        if (to[k] >= 0) {
            const T share = std::max(counts[k], T(0)) / smaller;
            to[k] = T(0.5) * std::log(to[k]) * std::sqrt(std::min(share, T(1)));
        }
}

// The highest of the scores that no other exceeds within `lobe` rows and columns of it, where they are numbered around, and
// that lies farther than `lobe` from the shift (0, 0): row and column, or the first of all with -1.
template <class T>
void best_peak(i64 rows, i64 columns, const T* scores, const double* down, const double* right, i64 lobe, i64* to, double* score) {
    T best = T(-1);
    to[0] = to[1] = 0;
    for (i64 y = 0; y < rows; y++)
        for (i64 x = 0; x < columns; x++) {
            const T here = scores[y * columns + x];
            if (!(here > best) || down[y] * down[y] + right[x] * right[x] <= double(lobe * lobe)) continue;
            bool highest = true;
            for (i64 j = y - lobe; j <= y + lobe; j++)
                for (i64 i = x - lobe; i <= x + lobe; i++)
                    highest &= !(scores[(j + rows) % rows * columns + (i + columns) % columns] > here);
            if (highest) best = here, to[0] = y, to[1] = x;
        }
    *score = double(best);
}

}  // namespace

#define MSLSQ_DEFINE(T, type)                                                                                         \
    /* to: the first and the last row and the first and the last column of the rectangle; the last row -1 without */   \
    MSLSQ_EXPORT(solid_box, type)(i64 height, i64 width, const T* mask, i64* to) {                                    \
        const Box box = solid_box<T>(height, width, mask);                                                            \
        to[0] = box.top, to[1] = box.bottom, to[2] = box.left, to[3] = box.right;                                     \
    }                                                                                                                 \
    /* values (planes, height, width); box as solid_box has it; to (planes, rows, columns) */                         \
    MSLSQ_EXPORT(box_sums, type)                                                                                      \
    (i64 planes, i64 height, i64 width, const T* values, const i64* box, i64 backwards, i64 rows, i64 columns,        \
     i64 own_rows, i64 own_columns, T* to) {                                                                          \
        for (i64 k = 0; k < planes; k++)                                                                              \
            box_sums<T>(height, width, values + k * height * width, {box[0], box[1], box[2], box[3]}, backwards, rows, \
                        columns, own_rows, own_columns, to + k * rows * columns);                                     \
    }                                                                                                                 \
    /* down, right: the shift that each row and column of the scores means */                                         \
    MSLSQ_EXPORT(best_peak, type)                                                                                     \
    (i64 rows, i64 columns, const T* scores, const double* down, const double* right, i64 lobe, i64* to,              \
     double* score) {                                                                                                 \
        best_peak<T>(rows, columns, scores, down, right, lobe, to, score);                                            \
    }                                                                                                                 \
    /* of each image, whose numbers begin so far behind the last one's: others (3, n), the count, the sums of its values and of */ \
    /* their squares; ones (2, n), those of the reference; products (n). settings (images + 1): the least share, the */ \
    /* smaller map's samples; to (images, n) */                                                                       \
    MSLSQ_EXPORT(scores_of_sums, type)                                                                                \
    (i64 images, i64 n, i64 after_others, const T* others, i64 after_ones, const T* ones, i64 after_products,         \
     const T* products, const double* settings, T* to) {                                                              \
        for (i64 k = 0; k < images; k++, others += after_others, ones += after_ones, products += after_products, to += n) \
            scores_of_sums<T>(n, others, ones, others + n, ones + n, others + 2 * n, products, T(settings[1 + k]),     \
                              T(settings[0]), to);                                                                    \
    }

MSLSQ_DEFINE(double, f64)
MSLSQ_DEFINE(float, f32)

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
