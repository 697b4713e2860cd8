// What a placement is asked besides, of a few numbers each: the blocks that show something and what they say of their own, the
// spread of both maps, and residuals beside themselves. mslsq/alignment/evidence.py, apertures.py, estimate.py and twice.py say what
// for.

#include <algorithm>
#include <vector>

#include "export.h"
#include "vectors.h"

namespace mslsq {
namespace MSLSQ_TARGET {
namespace {

// Of `block_details` (blocks, 7) the blocks with `least` samples, and of those the ones that show something in either map:
// to (.., 8): correlation, energy over its median, row, column, what noise leaves of a correlation, products of slopes.
void shown_blocks(i64 blocks, i64 across, const double* details, double least, double shows, double rounding, const double* noise,
                  double* to, i64* counts) {
    std::vector<double> amplitude[2], energies[2];
    double mean[2] = {0, 0};
    i64 filled = 0, shown = 0;
    for (i64 b = 0; b < blocks; b++) {
        const double* d = details + 7 * b;
        if (!(d[0] >= least)) continue;
        filled++;
        for (int m = 0; m < 2; m++) amplitude[m].push_back(std::sqrt(d[1 + m] / d[0])), mean[m] += amplitude[m].back();
    }
    counts[0] = filled, counts[1] = 0;
    double bar[2], typical[2];
    for (int m = 0; m < 2; m++) bar[m] = std::max(shows * (mean[m] / double(std::max(filled, i64(1)))), rounding);
    for (i64 b = 0, k = 0; b < blocks; b++) {
        const double* d = details + 7 * b;
        if (!(d[0] >= least)) continue;
        for (int m = 0; m < 2; m++)
            if (amplitude[m][k] > bar[m]) energies[m].push_back(d[1 + m] / d[0]);
        k++;
    }
    for (int m = 0; m < 2; m++) {
        typical[m] = 1;
        if (energies[m].empty()) continue;
        const auto middle = energies[m].begin() + (i64(energies[m].size()) - 1) / 2;
        std::nth_element(energies[m].begin(), middle, energies[m].end());
        typical[m] = *middle;
    }
    for (i64 b = 0, k = 0; b < blocks; b++) {
        const double* d = details + 7 * b;
        if (!(d[0] >= least)) continue;
        const bool seen[2] = {amplitude[0][k] > bar[0], amplitude[1][k] > bar[1]};
        if (seen[0] || seen[1]) {
            double *row = to + 8 * shown++, trusted = 1;
            row[0] = seen[0] && seen[1] ? d[3] / d[0] / (amplitude[0][k] * amplitude[1][k]) : 0;
            row[1] = 0, row[2] = double(b / across), row[3] = double(b % across);
            for (int m = 0; m < 2; m++) {
                const double energy = d[1 + m] / d[0];
                if (seen[m]) row[1] = std::max(row[1], energy / typical[m]);
                trusted *= std::min(std::max(1 - noise[m] / std::max(energy, std::numeric_limits<double>::min()), 0.0), 1.0);
            }
            row[4] = std::sqrt(trusted);
            for (int s = 0; s < 3; s++) row[5 + s] = d[4 + s] / d[0];
        }
        k++;
    }
    counts[1] = shown;
}

struct Edge {
    double x, y;  // towards twice the angle of its slope
    double size() const { return std::hypot(x, y); }
    double along(Edge other) const { return x * other.x + y * other.y; }
};

// The blocks that say something of their own, as `apertures.independent_both` has it; both counts.
void independent_blocks(i64 n, const double* slopes, const double* at, const double* agreement, double ahead, double* to) {
    constexpr double TINY = std::numeric_limits<double>::min();
    constexpr int AROUND = 8, STEPS[AROUND][2] = {{-1, -1}, {-1, 0}, {-1, 1}, {0, -1}, {0, 1}, {1, -1}, {1, 0}, {1, 1}};
    std::vector<double> components(n);
    std::vector<Edge> edges(n);
    i64 rows = 0, columns = 0;
    for (i64 k = 0; k < n; k++) {
        const double xx = slopes[3 * k], xy = slopes[3 * k + 1], yy = slopes[3 * k + 2];
        const double middle = 0.5 * (xx + yy), half = std::hypot(0.5 * (xx - yy), xy);
        const double larger = std::max(middle + half, 0.0), ratio = std::max(middle - half, 0.0) / std::max(larger, TINY);
        components[k] = larger > 0 ? (1 + ratio) * (1 + ratio) / (1 + ratio * ratio) : 0;
        const double strength = larger > 0 ? (1 - ratio) / (1 + ratio) : 0, twice = std::atan2(xy, 0.5 * (xx - yy));
        edges[k] = {strength * std::cos(twice), strength * std::sin(twice)};
        rows = std::max(rows, i64(at[2 * k])), columns = std::max(columns, i64(at[2 * k + 1]));
    }
    const i64 wide = columns + 3;
    std::vector<i64> number((rows + 3) * wide, -1);
    for (i64 k = 0; k < n; k++) number[(i64(at[2 * k]) + 1) * wide + i64(at[2 * k + 1]) + 1] = k;
    to[0] = to[1] = 0;
    for (i64 k = 0; k < n; k++) {
        // The edge is normal to its slope; of its two ways the one to the right, or down.
        const double angle = 0.5 * std::atan2(edges[k].y, edges[k].x) + 0.5 * 3.141592653589793;
        double down = std::sin(angle), right = std::cos(angle);
        if (!(right > 1e-9 || (std::fabs(right) <= 1e-9 && down > 0))) down = -down, right = -right;
        double cosine[AROUND];
        int order[AROUND];
        for (int s = 0; s < AROUND; s++) {
            cosine[s] = (STEPS[s][0] * down + STEPS[s][1] * right) / std::hypot(double(STEPS[s][0]), double(STEPS[s][1]));
            int place = s;
            for (; place > 0 && cosine[order[place - 1]] < cosine[s]; place--) order[place] = order[place - 1];
            order[place] = s;
        }
        const auto seen = [&](int step) {
            const i64 there = number[(i64(at[2 * k]) + 1 + STEPS[step][0]) * wide + i64(at[2 * k + 1]) + 1 + STEPS[step][1]];
            return std::fabs(cosine[step]) > ahead && there >= 0 ? edges[there] : Edge{0, 0};
        };
        double straight = 0, turning = 0;
        for (int one = 0; one < 2; one++) {
            const Edge before = seen(order[one]);
            straight = std::max(straight, edges[k].along(before));
            for (int other = AROUND - 2; other < AROUND; other++) {
                // Halfway between the two directions, and as much of an edge as the lesser of both.
                const Edge behind = seen(order[other]);
                const double sizes[2] = {before.size(), behind.size()}, by[2] = {std::max(sizes[0], TINY), std::max(sizes[1], TINY)};
                const Edge middle = {before.x / by[0] + behind.x / by[1], before.y / by[0] + behind.y / by[1]};
                turning = std::max(turning, edges[k].along(middle) * std::min(sizes[0], sizes[1]) / std::max(middle.size(), 1e-9));
            }
        }
        const double continued[2] = {straight, std::max(straight, turning)};
        for (int arcs = 0; arcs < 2; arcs++) {
            const double own = (components[k] > 0 ? 1 : 0) - continued[arcs] + std::max(components[k] - 1, 0.0);
            to[arcs] += agreement[k] * std::min(own, 1.0);
        }
    }
}

// Of two rasters, where the mask holds: how many numbers of each, and of either standard deviation and mean.
template <class T>
void spreads_of_both(i64 channels, i64 n, const T* one, const T* other, const bool* mask, double* to) {
    i64 count = 0;
    for (i64 k = 0; k < n; k++) count += mask[k];
    to[0] = double(count * channels);
    for (int which = 0; which < 2; which++) {
        const T* values = which ? other : one;
        double mean = 0, squares = 0;
        for (i64 c = 0; c < channels; c++)
            for (i64 k = 0; k < n; k++) mean += mask[k] ? double(values[c * n + k]) : 0.0;
        mean /= std::max(to[0], 1.0);
        for (i64 c = 0; c < channels; c++)
            for (i64 k = 0; k < n; k++) {
                const double off = mask[k] ? double(values[c * n + k]) - mean : 0.0;
                squares += off * off;
            }
        to[1 + 2 * which] = std::sqrt(squares / std::max(to[0] - 1, 1.0)), to[2 + 2 * which] = mean;
    }
}

// The autocorrelation of gain · map + bias - reference at the lag (x, y), of every few rows; 0 of nothing.
template <class T>
double lag_correlation(i64 channels, i64 height, i64 width, const T* map, const T* reference, const bool* valid, i64 x, i64 y, i64 every,
                       double gain, double bias) {
    const i64 top = std::max(i64(0), -y), bottom = height - std::max(i64(0), y);
    const i64 left = std::max(i64(0), -x), right = width - std::max(i64(0), x), away = y * width + x;
    double energy[2] = {0, 0}, product = 0;
    for (i64 c = 0; c < channels; c++, map += height * width, reference += height * width) {
        double sum[2] = {0, 0}, squares[2] = {0, 0}, both = 0, count = 0;
        for (i64 row = top; row < bottom; row += every)
            for (i64 k = row * width + left; k < row * width + right; k++) {
                const double use = valid[k] & valid[k + away];
                const double first = use * (gain * double(map[k]) + bias - double(reference[k]));
                const double second = use * (gain * double(map[k + away]) + bias - double(reference[k + away]));
                count += use, sum[0] += first, sum[1] += second;
                squares[0] += first * first, squares[1] += second * second, both += first * second;
            }
        // Residuals have hardly a mean, so that sums of squares lose no digits by what is subtracted of them.
        const double by = 1 / std::max(count, 1.0);
        for (int m = 0; m < 2; m++) energy[m] += squares[m] - sum[m] * sum[m] * by;
        product += both - sum[0] * sum[1] * by;
    }
    return product / std::max(std::sqrt(std::max(energy[0] * energy[1], 0.0)), 1e-300);
}

}  // namespace

#define MSLSQ_DEFINE(T, type)                                                                                            \
    /* to: how many numbers, standard deviation and mean of the one, of the other */                                     \
    MSLSQ_EXPORT(spreads_of_both, type)                                                                                  \
    (i64 channels, i64 n, const T* one, const T* other, const bool* mask, double* to) {                                  \
        spreads_of_both<T>(channels, n, one, other, mask, to);                                                           \
    }                                                                                                                    \
    /* values: gain, bias */                                                                                             \
    MSLSQ_EXPORT(lag_correlation, type)                                                                                  \
    (i64 channels, i64 height, i64 width, const T* map, const T* reference, const bool* valid, i64 x, i64 y, i64 every,  \
     const double* values, double* to) {                                                                                 \
        *to = lag_correlation<T>(channels, height, width, map, reference, valid, x, y, every, values[0], values[1]);     \
    }

MSLSQ_DEFINE(double, f64)
MSLSQ_DEFINE(float, f32)

// numbers: the least samples, the share of the mean amplitude, that of rounding, and what noise has in the blocks of either map;
// counts: blocks that are filled, blocks that are shown
MSLSQ_EXPORT(shown_blocks, any)(i64 blocks, i64 across, const double* details, const double* numbers, double* to, i64* counts) {
    shown_blocks(blocks, across, details, numbers[0], numbers[1], numbers[2], numbers + 3, to, counts);
}

// ahead: a cosine; to: without arcs, with arcs
MSLSQ_EXPORT(independent_blocks, any)
(i64 n, const double* slopes, const double* at, const double* agreement, const double* ahead, double* to) {
    independent_blocks(n, slopes, at, agreement, *ahead, to);
}

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
