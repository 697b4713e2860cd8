// Products of the Jacobian blocks of one term, added up where they belong.
//
// J is (batch, rows, tangent, lanes) with any strides, the lanes usually along memory: some of them at a time are copied
// to where a lane's own numbers are neighbours.

#include <vector>

#include "export.h"
#include "sizes.h"

namespace mslsq {
namespace MSLSQ_TARGET {
namespace {

constexpr i64 LANES = 32;  // 6 x 6 blocks of both factors: 18 KB

template <class T>
struct Jacobian {
    const T* data;
    i64 by_row, by_tangent, by_lane;

    const T* line(i64 row, i64 tangent) const { return data + row * by_row + tangent * by_tangent; }
};

// to[k distance + r stride + c] = J[r, first + c, lanes[k]], k < have.
template <class T, class R, class W>
void gather(const Jacobian<T>& J, const i64* lanes, i64 have, i64 first, R rows, W width, i64 stride, i64 distance,
            T* to) {
    for (i64 r = 0; r < rows; r++)
        for (i64 c = 0; c < width; c++) {
            const T* line = J.line(r, first + c);
            T* at = to + r * stride + c;
            for (i64 k = 0; k < have; k++) at[k * distance] = line[lanes[k] * J.by_lane];
        }
}

// values[offset + a width + b] += sum_r J[r, first + a] J[r, second + b].
template <class T, class R, class W>
void add_products(const Jacobian<T>& J, i64 count, const i64* lanes, const i64* offsets, i64 first, i64 second, R rows,
                  i64 height, W width, T* values) {
    const i64 stride = padded(width);
    std::vector<T> left(LANES * rows * height), right(LANES * rows * stride, T(0));
    for (i64 e = 0; e < count; e += LANES) {
        const i64 have = count - e < LANES ? count - e : LANES;
        gather(J, lanes + e, have, first, rows, height, height, rows * height, left.data());
        gather(J, lanes + e, have, second, rows, width, stride, rows * stride, right.data());
        for (i64 k = 0; k < have; k++) {
            const T *one = &left[k * rows * height], *other = &right[k * rows * stride];
            T* to = values + offsets[e + k];
            for (i64 a = 0; a < height; a++)
                for (i64 c = 0; c < width; c += TILE) {
                    vec<T> total{};
                    for (i64 r = 0; r < rows; r++) total = total + load(other + r * stride + c) * one[r * height + a];
                    T row[TILE];
                    store(row, total);
                    const i64 columns = width - c < TILE ? width - c : TILE;
                    for (i64 b = 0; b < columns; b++) to[a * width + c + b] += row[b];
                }
        }
    }
}

// gradient[column + a] += sum_r J[r, first + a] residual[r].
template <class T>
void add_gradient(const Jacobian<T>& J, const T* residual, i64 by_row, i64 by_lane, i64 count, const i64* lanes,
                  const i64* columns, i64 first, i64 rows, i64 height, T* gradient) {
    T total[LANES];
    for (i64 e = 0; e < count; e += LANES) {
        const i64 have = count - e < LANES ? count - e : LANES;
        for (i64 a = 0; a < height; a++) {
            for (i64 k = 0; k < have; k++) total[k] = 0;
            for (i64 r = 0; r < rows; r++) {
                const T *line = J.line(r, first + a), *right = residual + r * by_row;
                for (i64 k = 0; k < have; k++) total[k] += line[lanes[e + k] * J.by_lane] * right[lanes[e + k] * by_lane];
            }
            for (i64 k = 0; k < have; k++) gradient[columns[e + k] + a] += total[k];
        }
    }
}

}  // namespace

#define MSLSQ_DEFINE(T, type)                                                                                       \
    MSLSQ_EXPORT(normal_matrix, type)                                                                               \
    (i64 batch, const T* jacobian, i64 by_entry, i64 by_row, i64 by_tangent, i64 by_lane, T* values,                \
     i64 num_values, i64 count, const i64* lanes, const i64* offsets, i64 first, i64 second, i64 rows, i64 height,  \
     i64 width) {                                                                                                   \
        with_size<2, 3, 6>(rows, [&](auto r) {                                                                      \
            with_size<3, 6, 9>(width, [&](auto w) {                                                                    \
                for (i64 b = 0; b < batch; b++)                                                                     \
                    add_products<T>({jacobian + b * by_entry, by_row, by_tangent, by_lane}, count, lanes, offsets,  \
                                    first, second, r, height, w, values + b * num_values);                          \
            });                                                                                                     \
        });                                                                                                         \
    }                                                                                                               \
    MSLSQ_EXPORT(normal_gradient, type)                                                                             \
    (i64 batch, const T* jacobian, i64 by_entry, i64 by_row, i64 by_tangent, i64 by_lane, const T* residual,        \
     i64 residual_by_entry, i64 residual_by_row, i64 residual_by_lane, T* gradient, i64 unknowns, i64 count,        \
     const i64* lanes, const i64* columns, i64 first, i64 rows, i64 height) {                                       \
        for (i64 b = 0; b < batch; b++)                                                                             \
            add_gradient<T>({jacobian + b * by_entry, by_row, by_tangent, by_lane},                                 \
                            residual + b * residual_by_entry, residual_by_row, residual_by_lane, count, lanes,      \
                            columns, first, rows, height, gradient + b * unknowns);                                 \
    }

MSLSQ_DEFINE(double, f64)
MSLSQ_DEFINE(float, f32)

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
