// The cost of an alignment: a map seen through a warp and a change of values, beside the reference, at every sample of a
// regular grid. mslsq/alignment/objective.py states it sample by sample; here a sample's residual, its Jacobian and its
// part of the normal equations are made at once, and nothing of the size of the samples is written.

#include <algorithm>
#include <vector>

#include "export.h"
#include "spline.h"

namespace mslsq {
namespace MSLSQ_TARGET {
namespace {

constexpr i64 CHUNK = 64;     // samples at a time: eleven columns of them are 6 KB
constexpr int UNKNOWNS = 10;  // eight of a homography, gain and bias
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
void project(const Grid<T>& grid, const double* H, i64 row, i64 first, i64 have, double horizon, Seen& s) {
    const double y = grid.y + double(row) * grid.spacing;
    for (i64 k = 0; k < have; k++) {
        const double x = grid.x + double(first + k) * grid.spacing;
        const double w = H[6] * x + (H[7] * y + H[8]), d = w > horizon ? w : horizon, inverse = 1.0 / d;
        s.x[k] = x, s.y[k] = y, s.depth[k] = w > horizon ? w : -d;
        s.moved_x[k] = (H[0] * x + (H[1] * y + H[2])) * inverse;
        s.moved_y[k] = (H[3] * x + (H[4] * y + H[5])) * inverse;
        s.pixel_x[k] = s.moved_x[k] * grid.half + grid.centre_x;
        s.pixel_y[k] = s.moved_y[k] * grid.half + grid.centre_y;
    }
}

// rho(s) and its two derivatives, as losses.py has them.
enum Loss : i64 { SQUARES, CAUCHY, HUBER, TUKEY, GEMAN_MCCLURE };

struct Robust {
    double rho, slope, curvature;

    // Of Triggs' correction: the share of the curvature along the residual that is left, as in linearize/robust.py.
    double kept(double s) const {
        const double share = slope > 0 ? 1 + 2 * s * curvature / slope : 1;
        return share >= 0.1 ? std::sqrt(share) : 1;
    }
};

inline Robust robust(i64 loss, double s, double c2) {
    const double z = s / c2;
    switch (loss) {
        case CAUCHY:
            return {c2 * std::log1p(z), 1 / (1 + z), -1 / ((1 + z) * (1 + z) * c2)};
        case HUBER: {
            if (z <= 1) return {s, 1, 0};
            const double root = std::sqrt(z);
            return {c2 * (2 * root - 1), 1 / root, -0.5 / (root * s)};
        }
        case TUKEY: {
            if (z >= 1) return {c2 / 3, 0, 0};
            return {s * (1 - z * (1 - z / 3)), (1 - z) * (1 - z), -2 * (1 - z) / c2};
        }
        case GEMAN_MCCLURE: {
            const double share = 1 / (1 + z);
            return {s * share, share * share, -2 * share * share * share / c2};
        }
        default:
            return {s, 1, 0};
    }
}

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

// The warp's columns of one channel's Jacobian: models.Warp.pull_back.
template <class T>
void pull_back(const Seen& s, const double* H, double to_normalised, const T* gx, const T* gy, int tangent, i64 have,
               T (*columns)[CHUNK]) {
    for (i64 k = 0; k < have; k++) {
        const double inverse = s.depth[k] > 0 ? 1 / s.depth[k] : -1 / s.depth[k];
        const double a = gx[k] * to_normalised * inverse, b = gy[k] * to_normalised * inverse;
        const double c = -(a * s.moved_x[k] + b * s.moved_y[k]);
        const double r0 = a * H[0] + b * H[3] + c * H[6], r1 = a * H[1] + b * H[4] + c * H[7];
        const double r2 = a * H[2] + b * H[5] + c * H[8], x = s.x[k], y = s.y[k];
        const double all[8] = {r0, r1, x * r1 - y * r0, x * r0 + y * r1, x * r0 - y * r1, y * r0 + x * r1, x * r2, y * r2};
        for (int j = 0; j < tangent; j++) columns[j][k] = T(all[j]);
    }
}

template <class T>
struct Accumulator {
    vec<T> products[(UNKNOWNS + 2) * (UNKNOWNS + 2)] = {};
    double rho = 0, count = 0;
};

template <class T>
void warped(Spline<T> spline, const bool* mask, Grid<T> grid, const bool* known, const double* H, i64 rows, i64 first,
            i64 last, T* values, bool* seen) {
    const i64 width = spline.width, height = spline.height, n = rows * grid.columns;
    Seen s;
    for (i64 row = first; row < last; row++)
        for (i64 begin = 0; begin < grid.columns; begin += CHUNK) {
            const i64 have = std::min(CHUNK, grid.columns - begin), offset = row * grid.columns + begin;
            project(grid, H, row, begin, have, 1e-9, s);
            for (i64 k = 0; k < have; k++) {
                const double x = s.pixel_x[k], y = s.pixel_y[k];
                bool ok = known[offset + k] && s.depth[k] > 0 && x >= -SLACK && y >= -SLACK &&
                          x <= double(width - 1) + SLACK && y <= double(height - 1) + SLACK;
                if (ok) {
                    const i64 left = std::max(i64(std::floor(x + SLACK)), i64(0)), top = std::max(i64(std::floor(y + SLACK)), i64(0));
                    const i64 right = std::min(i64(std::ceil(x - SLACK)), width - 1), bottom = std::min(i64(std::ceil(y - SLACK)), height - 1);
                    const i64 l = std::min(left, width - 1), t = std::min(top, height - 1);
                    const i64 r = std::max(right, i64(0)), b = std::max(bottom, i64(0));
                    ok = mask[t * width + l] && mask[t * width + r] && mask[b * width + l] && mask[b * width + r];
                }
                seen[offset + k] = ok;
                if (ok)
                    spline.at(x, y, [&](i64 c, const Basis<T>& basis, const T* p, i64 stride) {
                        values[c * n + offset + k] = basis.value(p, stride);
                    });
                else
                    for (i64 c = 0; c < spline.channels; c++) values[c * n + offset + k] = 0;
            }
        }
}

template <class T>
void photometric(Spline<T> spline, Grid<T> grid, const T* target, const bool* valid, const double* H,
                 const double* values, int tangent, i64 loss, i64 rows, i64 tall, i64 first, i64 last, double* sums) {
    const i64 channels = spline.channels, n = rows * grid.columns;
    const int count = tangent + 3, stride = UNKNOWNS + 1;  // gain, bias and the residual itself
    const T gain = T(values[0]), bias = T(values[1]), gain_free = T(values[2]), bias_free = T(values[3]);
    const double c2 = values[4] * values[4];
    Seen s;
    std::vector<T> room(3 * CHUNK * channels);
    T *value = room.data(), *gx = value + CHUNK * channels, *gy = gx + CHUNK * channels;
    T columns[UNKNOWNS + 2][CHUNK] = {};
    T by_jacobian[CHUNK], by_residual[CHUNK];
    for (i64 strip = first; strip < last; strip++) {
        Accumulator<T> total;
        for (i64 row = strip * tall; row < std::min(rows, (strip + 1) * tall); row++)
            for (i64 begin = 0; begin < grid.columns; begin += CHUNK) {
                const i64 have = std::min(CHUNK, grid.columns - begin), offset = row * grid.columns + begin;
                const bool* here = valid + offset;
                if (!std::any_of(here, here + have, [](bool v) { return v; })) continue;
                project(grid, H, row, begin, have, HORIZON, s);
                for (i64 k = 0; k < have; k++) {
                    if (!here[k]) {
                        for (i64 c = 0; c < channels; c++) {
                            const i64 at = c * CHUNK + k;
                            value[at] = gx[at] = gy[at] = 0;
                        }
                        continue;
                    }
                    spline.at(s.pixel_x[k], s.pixel_y[k], [&](i64 c, const Basis<T>& basis, const T* p, i64 step) {
                        T found[3];
                        basis.value_and_gradient(p, step, found);
                        value[c * CHUNK + k] = found[0], gx[c * CHUNK + k] = found[1], gy[c * CHUNK + k] = found[2];
                    });
                }
                const i64 end = (have + TILE - 1) / TILE * TILE;
                for (i64 k = 0; k < have; k++) total.count += here[k];
                if (loss != SQUARES) {
                    for (i64 k = 0; k < have; k++) {
                        double squared = 0;
                        for (i64 c = 0; c < channels; c++) {
                            const double r = gain * value[c * CHUNK + k] + bias - target[c * n + offset + k];
                            squared += r * r;
                        }
                        const Robust one = robust(loss, squared, c2);
                        const double root = here[k] ? std::sqrt(one.slope) : 0, kept = channels == 1 ? one.kept(squared) : 1;
                        by_jacobian[k] = T(root * kept), by_residual[k] = T(root / kept);
                        total.rho += here[k] ? one.rho : 0.0;
                    }
                }
                for (i64 c = 0; c < channels; c++) {
                    const T *v = value + c * CHUNK, *t = target + c * n + offset;
                    pull_back(s, H, double(gain) * grid.half, gx + c * CHUNK, gy + c * CHUNK, tangent, have, columns);
                    T *by_gain = columns[tangent], *by_bias = columns[tangent + 1], *r = columns[tangent + 2];
                    for (i64 k = 0; k < have; k++) {
                        const T use = here[k] ? T(1) : T(0);
                        by_gain[k] = gain_free * gain * v[k];
                        by_bias[k] = bias_free * use;
                        r[k] = use * (gain * v[k] + bias - t[k]);
                    }
                    if (loss != SQUARES) {
                        for (int j = 0; j + 1 < count; j++)
                            for (i64 k = 0; k < have; k++) columns[j][k] *= by_jacobian[k];
                        for (i64 k = 0; k < have; k++) r[k] *= by_residual[k];
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
        to[1] = loss == SQUARES ? to[2 + (count - 1) * (stride + 1)] : total.rho;
    }
}

template <class T>
void at_points(Spline<T> spline, i64 n, const T* points, i64 first, i64 last, i64 wanted, T* values, T* gradients) {
    const T nan = std::numeric_limits<T>::quiet_NaN();
    for (i64 k = first; k < last; k++) {
        const T x = points[2 * k], y = points[2 * k + 1];
        const bool number = x == x && y == y;
        spline.at(number ? x : 0, number ? y : 0, [&](i64 c, const Basis<T>& basis, const T* p, i64 stride) {
            const i64 to = c * n + k;
            if (!wanted) {
                values[to] = number ? basis.value(p, stride) : nan;
                return;
            }
            T found[3];
            basis.value_and_gradient(p, stride, found);
            values[to] = number ? found[0] : nan;
            gradients[2 * to] = number ? found[1] : nan, gradients[2 * to + 1] = number ? found[2] : nan;
        });
    }
}

}  // namespace

#define MSLSQ_DEFINE(T, type)                                                                                          \
    /* values (channels, rows, columns) and seen (rows, columns): the map through the warp, zero where it has no data */ \
    MSLSQ_EXPORT(warped_samples, type)                                                                                 \
    (i64 channels, i64 height, i64 width, const T* coefficients, const bool* mask, i64 rows, i64 columns,              \
     const bool* known, const double* frame, const double* H, i64 first, i64 last, T* values, bool* seen) {            \
        warped<T>({coefficients, channels, height, width}, mask, {columns, frame[0], frame[1], frame[2], frame[3],     \
                                                                  frame[4], frame[5]},                                 \
                  known, H, rows, first, last, values, seen);                                                          \
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
    /* values (channels, n) and, if wanted, gradients (channels, n, 2) at points (n, 2), those from first to last */   \
    MSLSQ_EXPORT(spline_at, type)                                                                                      \
    (i64 channels, i64 height, i64 width, const T* coefficients, i64 n, const T* points, i64 first, i64 last,          \
     i64 wanted, T* values, T* gradients) {                                                                            \
        at_points<T>({coefficients, channels, height, width}, n, points, first, last, wanted, values, gradients);      \
    }

MSLSQ_DEFINE(double, f64)
MSLSQ_DEFINE(float, f32)

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
