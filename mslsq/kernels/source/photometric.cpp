// The cost of an alignment: a map seen through a warp and a change of values, beside the reference, at every sample of a
// regular grid. mslsq/alignment/objective.py states it sample by sample; here a sample's residual, its Jacobian and its
// part of the normal equations are made at once, and nothing of the size of the samples is written.

#include <algorithm>
#include <cstring>
#include <vector>

#include "descent.h"
#include "export.h"
#include "spline.h"

namespace mslsq {
namespace MSLSQ_TARGET {
namespace {

constexpr int UNKNOWNS = MOST;
constexpr double HORIZON = 1e-3;  // as in models.py
constexpr double SLACK = 1e-6;    // as in starts.inside

// What does not change from one look at the map to the next.
template <class T>
struct Grid {
    i64 columns;
    double x, y, spacing;            // normalised coordinates of the first sample, and their step
    double half, centre_x, centre_y;  // pixel of the map = half H n + centre
};

struct Seen {
    double x[CHUNK], y[CHUNK];              // normalised
    double moved_x[CHUNK], moved_y[CHUNK];  // H n
    double depth[CHUNK];
    double pixel_x[CHUNK], pixel_y[CHUNK];
};

template <class T>
void along_row(const Grid<T>& grid, i64 row, i64 first, i64 have, Seen& s) {
    const double y = grid.y + double(row) * grid.spacing;
    for (i32 k = 0; k < i32(have); k++) s.x[k] = grid.x + double(i32(first) + k) * grid.spacing, s.y[k] = y;
}

template <class T>
void project(const Grid<T>& grid, const double* H, i64 have, double horizon, Seen& s) {
    for (i64 k = 0; k < have; k++) {
        const double x = s.x[k], y = s.y[k];
        const double w = H[6] * x + (H[7] * y + H[8]), d = w > horizon ? w : horizon, inverse = 1.0 / d;
        s.depth[k] = w > horizon ? w : -d;
        s.moved_x[k] = (H[0] * x + (H[1] * y + H[2])) * inverse;
        s.moved_y[k] = (H[3] * x + (H[4] * y + H[5])) * inverse;
        s.pixel_x[k] = s.moved_x[k] * grid.half + grid.centre_x;
        s.pixel_y[k] = s.moved_y[k] * grid.half + grid.centre_y;
    }
}

enum Loss : i64 { SQUARES, CAUCHY, HUBER, TUKEY, GEMAN_MCCLURE };

// What a loss makes of squared residuals, as losses.py has it: rho, and of Triggs' correction the factors of residual
// and Jacobian: with the root of rho', what is left of the curvature along the residual, if that is enough.
constexpr double LEAST_CURVATURE = 0.5;  // that of linearize/robust.py, which says why; a test compares

struct Robust {
    double rho = 0;
    double by_residual[CHUNK], by_jacobian[CHUNK];

    // rho of CHUNK samples is `sum(z)`, rho' and rho'' c² / rho' are `slope(z)` and `bend(z)`, z = s / c².
    template <class Slope, class Bend>
    void weigh(const double* z, i64 have, bool curved, Slope slope, Bend bend) {
        for (i64 k = 0; k < have; k++) {
            const double share = curved ? 1 + 2 * z[k] * bend(z[k]) : 1;
            const double root = std::sqrt(slope(z[k])), kept = std::sqrt(share >= LEAST_CURVATURE ? share : 1);
            by_residual[k] = root / kept, by_jacobian[k] = root * kept;
        }
    }

    // Sums of logarithms by their product, which is a number where none of CHUNK factors is large.
    static double sum_of_log1p(const double* z, i64 have) {
        constexpr double LARGE = 4e4;  // its 64th power is 2e294
        double products[TILE], most[TILE] = {};
        std::fill_n(products, TILE, 1.0);
        const i64 whole = have / TILE * TILE;
        for (i64 k = 0; k < whole; k += TILE)
            for (int j = 0; j < TILE; j++) {
                products[j] *= 1 + z[k + j];
                most[j] = z[k + j] < most[j] ? most[j] : z[k + j];
            }
        for (i64 k = whole; k < have; k++) products[0] *= 1 + z[k], most[0] = z[k] < most[0] ? most[0] : z[k];
        bool small = true;
        double product = 1, sum = 0;
        for (int j = 0; j < TILE; j++) small &= most[j] < LARGE, product *= products[j];
        if (small) return std::log(product);
        for (i64 k = 0; k < have; k++) sum += std::log1p(z[k]);
        return sum;
    }

    // z is 0 where nothing is to be counted.
    void operator()(i64 loss, double c2, const double* z, i64 have, bool curved) {
        double sum = 0;
        switch (loss) {
            case CAUCHY:
                weigh(z, have, curved, [](double z) { return 1 / (1 + z); }, [](double z) { return -(1 / (1 + z)); });
                sum = sum_of_log1p(z, have);
                break;
            case HUBER:
                weigh(z, have, curved, [](double z) { return z <= 1 ? 1 : 1 / std::sqrt(z); },
                      [](double z) { return z <= 1 ? 0 : -0.5 / z; });
                for (i64 k = 0; k < have; k++) sum += z[k] <= 1 ? z[k] : 2 * std::sqrt(z[k]) - 1;
                break;
            case TUKEY:
                weigh(z, have, curved, [](double z) { return z < 1 ? (1 - z) * (1 - z) : 0; },
                      [](double z) { return z < 1 ? -2 / (1 - z) : 0; });
                for (i64 k = 0; k < have; k++) sum += z[k] < 1 ? z[k] * (1 - z[k] * (1 - z[k] / 3)) : 1.0 / 3;
                break;
            default:
                weigh(z, have, curved, [](double z) { return 1 / ((1 + z) * (1 + z)); },
                      [](double z) { return -2 / (1 + z); });
                for (i64 k = 0; k < have; k++) sum += z[k] / (1 + z[k]);
        }
        rho += c2 * sum;
    }
};

// to[a, b] += the products of columns a >= b, CHUNK numbers each (zeros behind the last), as sums of eight.
template <class T>
void add_products(const T (*columns)[CHUNK], int count, i64 have, vec<T>* to) {
    const i64 end = (have + TILE - 1) / TILE * TILE;
    for (int a = 0; a < count; a += 2)
        for (int b = 0; b <= a; b += 2) {
            vec<T>*row = to + a * (UNKNOWNS + 2) + b, *next = row + UNKNOWNS + 2;
            vec<T> s00 = row[0], s01 = row[1], s10 = next[0], s11 = next[1];
            for (i64 k = 0; k < end; k += TILE) {
                const vec<T> a0 = load(columns[a] + k), a1 = load(columns[a + 1] + k);
                const vec<T> b0 = load(columns[b] + k), b1 = load(columns[b + 1] + k);
                s00 = s00 + a0 * b0, s01 = s01 + a0 * b1, s10 = s10 + a1 * b0, s11 = s11 + a1 * b1;
            }
            row[0] = s00, row[1] = s01, next[0] = s10, next[1] = s11;
        }
}

// The warp's columns of one channel's Jacobian: models.Warp.pull_back. Column by column, so that each is a loop over
// samples that the compiler makes vectors of.
template <class T>
void pull_back(const Seen& s, const double* H, double to_normalised, const T* gx, const T* gy, int tangent, i64 have,
               T (*columns)[CHUNK]) {
    double r0[CHUNK], r1[CHUNK], r2[CHUNK];
    for (i64 k = 0; k < have; k++) {
        const double factor = to_normalised / std::fabs(s.depth[k]);
        const double a = gx[k] * factor, b = gy[k] * factor, c = -(a * s.moved_x[k] + b * s.moved_y[k]);
        r0[k] = a * H[0] + b * H[3] + c * H[6];
        r1[k] = a * H[1] + b * H[4] + c * H[7];
        r2[k] = a * H[2] + b * H[5] + c * H[8];
    }
    const auto column = [&](int j, auto entry) {
        if (j >= tangent) return;
        T* to = columns[j];
        for (i64 k = 0; k < have; k++) to[k] = T(entry(k));
    };
    column(0, [&](i64 k) { return r0[k]; });
    column(1, [&](i64 k) { return r1[k]; });
    column(2, [&](i64 k) { return s.x[k] * r1[k] - s.y[k] * r0[k]; });
    column(3, [&](i64 k) { return s.x[k] * r0[k] + s.y[k] * r1[k]; });
    column(4, [&](i64 k) { return s.x[k] * r0[k] - s.y[k] * r1[k]; });
    column(5, [&](i64 k) { return s.y[k] * r0[k] + s.x[k] * r1[k]; });
    column(6, [&](i64 k) { return s.x[k] * r2[k]; });
    column(7, [&](i64 k) { return s.y[k] * r2[k]; });
}

template <class T>
struct Accumulator {
    vec<T> products[(UNKNOWNS + 2) * (UNKNOWNS + 2)] = {};
    double count = 0;
};

// Along one axis: the pixels on either side of a point, and whether it lies between the first and the last.
struct Neighbours {
    i32 before[CHUNK], after[CHUNK];
    i32 within[CHUNK];

    void place(const double* at, i64 size, i64 have) {
        const i32 last = i32(size - 1);
        for (i64 k = 0; k < have; k++) {
            const double x = bounded(at[k]);
            const i32 low = floor_of(x + SLACK), high = -floor_of(SLACK - x);
            within[k] = (x >= -SLACK ? 1 : 0) & (x <= double(last) + SLACK ? 1 : 0);
            before[k] = low < 0 ? 0 : low > last ? last : low;
            after[k] = high < 0 ? 0 : high > last ? last : high;
        }
    }
};

// The rows and columns of a mask that hold all that is true, if nothing within them is false: most masks are such a rectangle,
// and whether a point lies in it takes comparisons in place of four numbers of the mask.
struct Rectangle {
    i32 top = 0, left = 0, bottom = -1, right = -1;  // the last are within
    bool solid = false;

    Rectangle(const bool* mask, i64 height, i64 width) {
        const bool *end = mask + height * width, *first = std::find(mask, end, true);
        if (first == end) return;
        const i64 high = (first - mask) / width, begin = (first - mask) % width;
        const bool *model = mask + high * width, *after = std::find(first, model + width, false);
        if (std::find(after, model + width, true) != model + width) return;
        i64 low = high + 1;
        while (low < height && !std::memcmp(model, mask + low * width, width)) low++;
        solid = !std::memchr(mask + low * width, true, (height - low) * width);
        top = i32(high), bottom = i32(low - 1), left = i32(begin), right = i32(after - model - 1);
    }
};

// One side of such a rectangle: are the pixels on either side of a point (`Neighbours`) in it? Without rounding to them.
struct Side {
    double first, last, slack;

    Side(i32 first, i32 last, i64 size)
        : first(first), last(last == size - 1 ? double(last) + SLACK : double(last)), slack(last == size - 1 ? 0 : SLACK) {}
};

template <class T>
void warped(Spline<T> spline, const bool* mask, Grid<T> grid, const bool* known, const double* H, i64 rows, i64 first,
            i64 last, i64 every, T* values, bool* seen) {
    const i64 width = spline.width, n = rows * grid.columns;
    const Rectangle of_mask(mask, spline.height, width);
    const Side along_x(of_mask.left, of_mask.right, width), along_y(of_mask.top, of_mask.bottom, spline.height);
    Seen s;
    Neighbours x, y;
    Sampler<T> sampler;
    // Of every few samples those that are seen, gathered until they are as many as are sampled at once.
    double chosen_x[CHUNK], chosen_y[CHUNK];
    i64 chosen[CHUNK], count = 0;
    const auto sample_chosen = [&]() {
        T found[CHUNK];
        sampler.template place<false>(chosen_x, chosen_y, count);
        for (i64 c = 0; c < spline.channels; c++) {
            sampler.value(spline, c, nullptr, count, found);
            for (i64 k = 0; k < count; k++) values[c * n + chosen[k]] = found[k];
        }
        count = 0;
    };
    for (i64 row = first; row < last; row++)
        for (i64 begin = 0; begin < grid.columns; begin += CHUNK) {
            const i64 have = std::min(CHUNK, grid.columns - begin), offset = row * grid.columns + begin;
            along_row(grid, row, begin, have, s);
            project(grid, H, have, 1e-9, s);
            bool* here = seen + offset;
            i32 within[CHUNK];
            if (of_mask.solid)
                for (i64 k = 0; k < have; k++) {
                    const double x = s.pixel_x[k], y = s.pixel_y[k];
                    within[k] = (s.depth[k] > 0 ? 1 : 0) & (x + SLACK >= along_x.first ? 1 : 0) &
                                (x - along_x.slack <= along_x.last ? 1 : 0) & (y + SLACK >= along_y.first ? 1 : 0) &
                                (y - along_y.slack <= along_y.last ? 1 : 0);
                }
            else {
                x.place(s.pixel_x, width, have);
                y.place(s.pixel_y, spline.height, have);
                for (i64 k = 0; k < have; k++) {
                    const bool *above = mask + i64(y.before[k]) * width, *below = mask + i64(y.after[k]) * width;
                    within[k] = (s.depth[k] > 0 ? 1 : 0) & x.within[k] & y.within[k] & above[x.before[k]] &
                                above[x.after[k]] & below[x.before[k]] & below[x.after[k]];
                }
            }
            // As bytes: what the compiler takes for truth values it asks one by one.
            const auto* of_known = reinterpret_cast<const unsigned char*>(known + offset);
            auto* bytes = reinterpret_cast<unsigned char*>(here);
            for (i64 k = 0; k < have; k++) bytes[k] = of_known[k] & static_cast<unsigned char>(within[k]);
            const bool any = std::memchr(here, true, have);
            if (any && every == 1) {
                sampler.template place<false>(s.pixel_x, s.pixel_y, have);
                for (i64 c = 0; c < spline.channels; c++) sampler.value(spline, c, here, have, values + c * n + offset);
                continue;
            }
            for (i64 c = 0; c < spline.channels; c++) std::fill_n(values + c * n + offset, have, T(0));
            for (i64 k = any ? (every - offset % every) % every : have; k < have; k += every) {
                if (!here[k]) continue;
                chosen_x[count] = s.pixel_x[k], chosen_y[count] = s.pixel_y[k], chosen[count++] = offset + k;
                if (count == CHUNK) sample_chosen();
            }
        }
    if (count) sample_chosen();
}

template <class T>
void photometric(Spline<T> spline, Grid<T> grid, const T* target, const bool* valid, const double* H,
                 const double* values, int tangent, i64 loss, i64 rows, i64 tall, i64 first, i64 last, double* sums) {
    const i64 channels = spline.channels, n = rows * grid.columns;
    const int count = tangent + 3, stride = UNKNOWNS + 1;  // gain, bias and the residual itself
    const T gain = T(values[0]), bias = T(values[1]), gain_free = T(values[2]), bias_free = T(values[3]);
    const double c2 = values[4] * values[4];
    Seen s;
    Sampler<T> sampler;
    std::vector<T> room(3 * CHUNK * channels);
    T *value = room.data(), *gx = value + CHUNK * channels, *gy = gx + CHUNK * channels;
    T columns[UNKNOWNS + 2][CHUNK] = {};
    T use[CHUNK];
    double z[CHUNK];
    for (i64 strip = first; strip < last; strip++) {
        Accumulator<T> total;
        Robust robust;
        for (i64 row = strip * tall; row < std::min(rows, (strip + 1) * tall); row++)
            for (i64 begin = 0; begin < grid.columns; begin += CHUNK) {
                const i64 have = std::min(CHUNK, grid.columns - begin), offset = row * grid.columns + begin;
                const bool* here = valid + offset;
                const auto* as_bytes = reinterpret_cast<const unsigned char*>(here);
                i32 valid_here = 0;
                for (i64 k = 0; k < have; k++) valid_here += i32(as_bytes[k]), use[k] = T(i32(as_bytes[k]));
                if (!valid_here) continue;
                total.count += valid_here;
                along_row(grid, row, begin, have, s);
                project(grid, H, have, HORIZON, s);
                sampler.template place<true>(s.pixel_x, s.pixel_y, have);
                for (i64 c = 0; c < channels; c++)
                    sampler.value_and_gradient(spline, c, here, have, value + c * CHUNK, gx + c * CHUNK, gy + c * CHUNK);
                const i64 end = (have + TILE - 1) / TILE * TILE;
                if (loss != SQUARES) {
                    for (i64 c = 0; c < channels; c++)
                        for (i64 k = 0; k < have; k++) {
                            const double r = gain * value[c * CHUNK + k] + bias - target[c * n + offset + k];
                            z[k] = (c ? z[k] : 0.0) + double(use[k]) * (r * r) / c2;
                        }
                    robust(loss, c2, z, have, channels == 1);
                }
                for (i64 c = 0; c < channels; c++) {
                    const T *v = value + c * CHUNK, *t = target + c * n + offset;
                    pull_back(s, H, double(gain) * grid.half, gx + c * CHUNK, gy + c * CHUNK, tangent, have, columns);
                    T *by_gain = columns[tangent], *by_bias = columns[tangent + 1], *r = columns[tangent + 2];
                    for (i64 k = 0; k < have; k++) {
                        by_gain[k] = gain_free * gain * v[k];
                        by_bias[k] = bias_free * use[k];
                        r[k] = use[k] * (gain * v[k] + bias - t[k]);
                    }
                    if (loss != SQUARES) {
                        for (int j = 0; j + 1 < count; j++)
                            for (i64 k = 0; k < have; k++) columns[j][k] *= T(robust.by_jacobian[k]);
                        for (i64 k = 0; k < have; k++) r[k] *= T(robust.by_residual[k]);
                    }
                    for (int j = 0; j < count; j++)
                        for (i64 k = have; k < end; k++) columns[j][k] = 0;
                    if (count % 2) std::fill_n(columns[count], CHUNK, T(0));
                    add_products<T>(columns, count, have, total.products);
                }
            }
        double* to = sums + strip * (2 + stride * stride);
        to[0] = total.count;
        for (int a = 0; a < count; a++)
            for (int b = 0; b <= a; b++) {
                const vec<T>& parts = total.products[a * (UNKNOWNS + 2) + b];
                double sum = 0;
                for (int k = 0; k < TILE; k++) sum += double(parts[k]);
                to[2 + a * stride + b] = sum;
            }
        to[1] = loss == SQUARES ? to[2 + (count - 1) * (stride + 1)] : robust.rho;
    }
}

// Over some samples, of plain residuals r and their Jacobian J: own += JᵀJ and scores += Σ s sᵀ, s = Σ r J over the channels of
// a sample; and with the spline of the raster that is compared with, both += JᵀK, K the Jacobian by its gradients and values.
// Matrices of `tangent` + 2 unknowns.
template <class T>
void jacobian_products(Spline<T> moving, Spline<T> fixed, Grid<T> grid, i64 columns, double stride, double side, const T* target, i64 n,
                       const i64* chosen, i64 count, const double* H, const double* values, int tangent, double* own, double* both,
                       double* scores) {
    const int unknowns = tangent + 2;
    const double identity[9] = {1, 0, 0, 0, 1, 0, 0, 0, 1};
    const T gain = T(values[0]), bias = T(values[1]), gain_free = T(values[2]), bias_free = T(values[3]);
    Seen s, still;
    Sampler<T> there, here;
    T value[CHUNK], gx[CHUNK], gy[CHUNK], J[UNKNOWNS][CHUNK], K[UNKNOWNS][CHUNK], r[CHUNK], sums[UNKNOWNS][CHUNK];
    const auto add = [&](const T(*a)[CHUNK], const T(*b)[CHUNK], i64 have, double* to) {
        for (int i = 0; i < unknowns; i++)
            for (int j = 0; j < unknowns; j++) {
                T parts[TILE] = {};
                const i64 whole = have / TILE * TILE;
                for (i64 k = 0; k < whole; k += TILE)
                    for (int m = 0; m < TILE; m++) parts[m] += a[i][k + m] * b[j][k + m];
                for (i64 k = whole; k < have; k++) parts[0] += a[i][k] * b[j][k];
                for (int m = 0; m < TILE; m++) to[i * unknowns + j] += double(parts[m]);
            }
    };
    for (i64 begin = 0; begin < count; begin += CHUNK) {
        const i64 have = std::min(CHUNK, count - begin);
        const i64* sample = chosen + begin;
        for (i64 k = 0; k < have; k++) {
            const double row = double(sample[k] / columns), column = double(sample[k] % columns);
            s.x[k] = still.x[k] = still.moved_x[k] = grid.x + column * grid.spacing;
            s.y[k] = still.y[k] = still.moved_y[k] = grid.y + row * grid.spacing;
            still.depth[k] = 1, still.pixel_x[k] = column * stride, still.pixel_y[k] = row * stride;
        }
        project(grid, H, have, HORIZON, s);
        there.template place<true>(s.pixel_x, s.pixel_y, have);
        if (both) here.template place<true>(still.pixel_x, still.pixel_y, have);
        for (int j = 0; j < unknowns; j++) std::fill_n(sums[j], CHUNK, T(0));
        for (i64 c = 0; c < moving.channels; c++) {
            there.value_and_gradient(moving, c, nullptr, have, value, gx, gy);
            pull_back(s, H, double(gain) * grid.half, gx, gy, tangent, have, J);
            for (i64 k = 0; k < have; k++) {
                J[tangent][k] = gain_free * gain * value[k], J[tangent + 1][k] = bias_free;
                r[k] = gain * value[k] + bias - target[c * n + sample[k]];
            }
            for (int j = 0; j < unknowns; j++)
                for (i64 k = 0; k < have; k++) sums[j][k] += r[k] * J[j][k];
            add(J, J, have, own);
            if (!both) continue;
            here.value_and_gradient(fixed, c, nullptr, have, value, gx, gy);
            pull_back(still, identity, side, gx, gy, tangent, have, K);
            for (i64 k = 0; k < have; k++)
                K[tangent][k] = gain_free * (target[c * n + sample[k]] - bias), K[tangent + 1][k] = bias_free;
            add(J, K, have, both);
        }
        add(sums, sums, have, scores);
    }
}

// What the strips of `photometric` come to: samples and sum of rho, gradient, and the whole matrix, one behind the other.
constexpr i64 TOTALS = 2 + (UNKNOWNS + 1) * (UNKNOWNS + 1);  // numbers of one strip

void normal_totals(i64 strips, i64 unknowns, const double* sums, double* to) {
    constexpr i64 side = UNKNOWNS + 1, size = TOTALS;
    double total[size] = {};
    for (i64 strip = 0; strip < strips; strip++)
        for (i64 k = 0; k < size; k++) total[k] += sums[strip * size + k];
    double *gradient = to + 2, *matrix = gradient + unknowns;
    to[0] = total[0], to[1] = total[1];
    const double* products = total + 2;
    for (i64 a = 0; a < unknowns; a++) {
        gradient[a] = products[unknowns * side + a];
        for (i64 b = 0; b <= a; b++) matrix[a * unknowns + b] = matrix[b * unknowns + a] = products[a * side + b];
    }
}

template <class T>
void at_points(Spline<T> spline, i64 n, const T* points, i64 first, i64 last, i64 wanted, T* values, T* gradients) {
    const T nan = std::numeric_limits<T>::quiet_NaN();
    Sampler<T> sampler;
    double x[CHUNK], y[CHUNK];
    T found[3][CHUNK];
    for (i64 begin = first; begin < last; begin += CHUNK) {
        const i64 have = std::min(CHUNK, last - begin);
        for (i64 k = 0; k < have; k++) x[k] = double(points[2 * (begin + k)]), y[k] = double(points[2 * (begin + k) + 1]);
        wanted ? sampler.template place<true>(x, y, have) : sampler.template place<false>(x, y, have);
        for (i64 c = 0; c < spline.channels; c++) {
            if (wanted)
                sampler.value_and_gradient(spline, c, nullptr, have, found[0], found[1], found[2]);
            else
                sampler.value(spline, c, nullptr, have, found[0]);
            for (i64 k = 0; k < have; k++) {
                const i64 to = c * n + begin + k;
                const bool number = x[k] == x[k] && y[k] == y[k];
                values[to] = number ? found[0][k] : nan;
                if (wanted) gradients[2 * to] = number ? found[1][k] : nan, gradients[2 * to + 1] = number ? found[2][k] : nan;
            }
        }
    }
}

}  // namespace

#define MSLSQ_DEFINE(T, type)                                                                                          \
    /* values (channels, rows, columns) and seen (rows, columns): the map through the warp, zero where it has no data,  */ \
    /* and but at every `every`-th sample */                                                                           \
    MSLSQ_EXPORT(warped_samples, type)                                                                                 \
    (i64 channels, i64 height, i64 width, const T* coefficients, const bool* mask, i64 rows, i64 columns,              \
     const bool* known, const double* frame, const double* H, i64 first, i64 last, i64 every, T* values, bool* seen) { \
        warped<T>({coefficients, channels, height, width}, mask, {columns, frame[0], frame[1], frame[2], frame[3],     \
                                                                  frame[4], frame[5]},                                 \
                  known, H, rows, first, last, every, values, seen);                                                   \
    }                                                                                                                  \
    /* per strip of `tall` rows: samples, sum of rho, and the lower triangle of the products of Jacobian and residual */ \
    MSLSQ_EXPORT(photometric, type)                                                                                    \
    (i64 channels, i64 height, i64 width, const T* coefficients, i64 rows, i64 columns, const T* target,               \
     const bool* valid, const double* frame, const double* H, const double* values, i64 tangent, i64 loss,             \
     i64 tall, i64 first, i64 last, double* sums) {                                                                    \
        photometric<T>({coefficients, channels, height, width},                                                        \
                       {columns, frame[0], frame[1], frame[2], frame[3], frame[4], frame[5]}, target, valid, H,        \
                       values, int(tangent), loss, rows, tall, first, last, sums);                                     \
    }                                                                                                                  \
    /* all steps of a solve. H, values (log gain, bias): from the start to the end; settings: which values are free, and the */ \
    /* scale of the loss; to: the last totals; costs: max_steps + 1, and the rate; ending: how, and the number of costs */ \
    MSLSQ_EXPORT(photometric_descent, type)                                                                            \
    (i64 channels, i64 height, i64 width, const T* coefficients, i64 rows, i64 columns, const T* target,               \
     const bool* valid, const double* frame, double* H, double* values, const double* settings, const bool* free,      \
     i64 tangent, i64 loss, i64 tall, const double* limits, i64 max_steps, double* to, double* costs, i64* ending) {   \
        const Grid<T> grid{columns, frame[0], frame[1], frame[2], frame[3], frame[4], frame[5]};                       \
        const i64 strips = (rows + tall - 1) / tall, unknowns = tangent + 2;                                           \
        std::vector<double> sums(strips * TOTALS), found(2 + unknowns + unknowns * unknowns);                          \
        const auto evaluate = [&](const Placement& at, Equations& equations) {                                         \
            const double now[5] = {std::exp(std::min(at.value[0] * settings[0], settings[3])), at.value[1] * settings[1], \
                                   settings[0], settings[1], settings[2]};                                             \
            photometric<T>({coefficients, channels, height, width}, grid, target, valid, at.matrix, now, int(tangent), \
                           loss, rows, tall, 0, strips, sums.data());                                                  \
            normal_totals(strips, unknowns, sums.data(), found.data());                                                \
            equations.samples = double(i64(found[0])), equations.cost = 0.5 * found[1];                                \
            std::copy_n(&found[2], unknowns, equations.gradient);                                                      \
            for (i64 i = 0; i < unknowns; i++) std::copy_n(&found[2 + unknowns * (1 + i)], unknowns, equations.matrix[i]); \
        };                                                                                                             \
        Placement state;                                                                                               \
        std::copy_n(H, 9, state.matrix);                                                                               \
        std::copy_n(values, 2, state.value);                                                                           \
        Equations at;                                                                                                  \
        const Limits all{limits[0], limits[1], limits[2], limits[3], limits[4], limits[5], limits[6], limits[7], limits[8], limits[9]}; \
        ending[0] = Descent(int(unknowns), free)(evaluate, all, max_steps, state, at, costs, ending + 1, costs[max_steps + 1]); \
        std::copy_n(state.matrix, 9, H);                                                                               \
        std::copy_n(state.value, 2, values);                                                                           \
        to[0] = at.samples, to[1] = at.cost;                                                                           \
        std::copy_n(at.gradient, unknowns, to + 2);                                                                    \
        for (i64 i = 0; i < unknowns; i++) std::copy_n(at.matrix[i], unknowns, to + 2 + unknowns * (1 + i));           \
    }                                                                                                                  \
    /* chosen: numbers of samples; values: gain, bias, and which are free; to: the matrices own, scores and, if wanted, */ \
    /* both; `pixels` says where samples lie in the raster that is compared with: their stride, and pixels per unit */  \
    MSLSQ_EXPORT(jacobian_products, type)                                                                              \
    (i64 channels, i64 height, i64 width, const T* coefficients, i64 own_height, i64 own_width,                        \
     const T* own_coefficients, i64 wanted, i64 columns, i64 n, const T* target, const double* frame,                  \
     const double* pixels, i64 count, const i64* chosen, const double* H, const double* values, i64 tangent,           \
     double* to) {                                                                                                     \
        const i64 size = (tangent + 2) * (tangent + 2);                                                                \
        jacobian_products<T>({coefficients, channels, height, width}, {own_coefficients, channels, own_height, own_width}, \
                             {columns, frame[0], frame[1], frame[2], frame[3], frame[4], frame[5]}, columns, pixels[0], \
                             pixels[1], target, n, chosen, count, H, values, int(tangent), to,                         \
                             wanted ? to + 2 * size : nullptr, to + size);                                             \
    }                                                                                                                  \
    /* values (channels, n) and, if wanted, gradients (channels, n, 2) at points (n, 2), those from first to last */   \
    MSLSQ_EXPORT(spline_at, type)                                                                                      \
    (i64 channels, i64 height, i64 width, const T* coefficients, i64 n, const T* points, i64 first, i64 last,          \
     i64 wanted, T* values, T* gradients) {                                                                            \
        at_points<T>({coefficients, channels, height, width}, n, points, first, last, wanted, values, gradients);      \
    }

MSLSQ_DEFINE(double, f64)
MSLSQ_DEFINE(float, f32)

MSLSQ_EXPORT(normal_totals, any)(i64 strips, i64 unknowns, const double* sums, double* to) {
    normal_totals(strips, unknowns, sums, to);
}

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
