// J^T J and J^T r of one term, added up where they belong, in one pass over J; and matrices of its blocks, in its place.
//
// J is (batch, rows, tangent, lanes) with any strides, the lanes usually along memory. Some lanes at a time are copied to
// where a lane's own numbers are neighbours; then all products of those lanes are formed. (With a pass over J for every
// pair of variables a step of BAL 49-7776 spent a third of its time here.) The plan is made by
// mslsq/linear/normal_products.py.

#include <algorithm>

#include "export.h"
#include "plan.h"
#include "sizes.h"

namespace mslsq {
namespace MSLSQ_TARGET {
namespace {

constexpr i64 MOST_LANES = 32, MOST_NUMBERS = 3072;  // copied at a time: 24 KB in float64

// The parts of the plan, field by field.
struct Products {
    i64 first, second, height, width;
    Array lanes, offsets;

    explicit Products(PlanReader& plan)
        : first(plan.number()),
          second(plan.number()),
          height(plan.number()),
          width(plan.number()),
          lanes(plan.array()),
          offsets(plan.array()) {}
};

struct Variable {
    i64 first, height;
    Array lanes, columns;

    explicit Variable(PlanReader& plan)
        : first(plan.number()), height(plan.number()), lanes(plan.array()), columns(plan.array()) {}
};

struct Plan {
    i64 num_values, num_columns;
    std::vector<Products> products;
    std::vector<Variable> variables;

    explicit Plan(PlanReader plan)
        : num_values(plan.number()),
          num_columns(plan.number()),
          products(plan.parts<Products>()),
          variables(plan.parts<Variable>()) {}
};

// A matrix (rows, columns) whose rows are `stride` apart.
template <class T>
struct Rows {
    const T* at;
    i64 stride;

    const T* operator[](i64 row) const { return at + row * stride; }
};

// to (height, width) += left^T right on the columns from `column` to `column` + W.
template <int W, class T, class R>
inline void add_columns(Rows<T> left, Rows<T> right, R rows, i64 height, i64 width, i64 column,
                        T* __restrict to) {
    for (i64 a = 0; a < height; a++) {
        reg<T, W> total = load_register<W>(right[0] + column) * left[0][a];
        for (i64 r = 1; r < rows; r++) total += load_register<W>(right[r] + column) * left[r][a];
        T* at = to + a * width + column;
        store_register<W>(at, load_register<W>(at) + total);
    }
}

// The same on all columns from AT on, of a width that is known: nine are eight and one.
template <int AT, int W, class T, class R, int COLUMNS>
inline void add_product(Rows<T> left, Rows<T> right, R rows, i64 height, Known<COLUMNS> width, T* to) {
    if constexpr (AT < COLUMNS && W > COLUMNS - AT) {
        add_product<AT, W / 2>(left, right, rows, height, width, to);
    } else if constexpr (AT < COLUMNS) {
        add_columns<W>(left, right, rows, height, width, AT, to);
        add_product<AT + W, W>(left, right, rows, height, width, to);
    }
}

template <int AT, int W, class T, class R>
inline void add_product(Rows<T> left, Rows<T> right, R rows, i64 height, i64 width, T* to) {
    i64 column = 0;
    for (; column + W <= width; column += W) add_columns<W>(left, right, rows, height, width, column, to);
    for (; column < width; column++) add_columns<1>(left, right, rows, height, width, column, to);
}

// Where the lanes before `last` end in an ascending list, searched from `from` on.
inline i64 end_of(Array lanes, i64 from, i64 last) {
    while (from < lanes.count && lanes[from] < last) from++;
    return from;
}

// J of some lanes, from lane to lane `rows` rows of `tangent` numbers, and their residuals.
template <class T>
struct Lanes {
    std::vector<T> jacobian, residual;
    i64 rows, tangent;

    Rows<T> of(i64 lane) const { return {jacobian.data() + lane * rows * tangent, tangent}; }
    Rows<T> residual_of(i64 lane) const { return {residual.data() + lane * rows, 1}; }
};

template <class T, class R>
void add_products(const Lanes<T>& some, i64 first, const Products& of, i64 from, i64 to, R rows, T* values) {
    with_size<3, 6, 9>(of.width, [&](auto width) {
        for (i64 e = from; e < to; e++) {
            const Rows<T> J = some.of(of.lanes[e] - first);
            add_product<0, WIDTH<T>>(Rows<T>{J.at + of.first, J.stride}, Rows<T>{J.at + of.second, J.stride}, rows,
                                     of.height, width, values + of.offsets[e]);
        }
    });
}

template <class T, class R>
void add_gradient(const Lanes<T>& some, i64 first, const Variable& of, i64 from, i64 to, R rows, T* gradient) {
    with_size<3, 6, 9>(of.height, [&](auto height) {
        for (i64 e = from; e < to; e++) {
            const Rows<T> J = some.of(of.lanes[e] - first);
            add_product<0, WIDTH<T>>(some.residual_of(of.lanes[e] - first), Rows<T>{J.at + of.first, J.stride}, rows, 1,
                                     height, gradient + of.columns[e]);
        }
    });
}

// Both, or one of them where the other is null.
template <class T>
void add_normal_equations(const T* jacobian, i64 by_row, i64 by_tangent, i64 by_lane, const T* residual,
                          i64 residual_by_row, i64 residual_by_lane, i64 rows, i64 tangent, i64 lanes, T* values,
                          T* gradient, const Plan& plan) {
    const i64 numbers = std::max<i64>(rows * tangent, 1);
    const i64 together = std::max<i64>(1, std::min(MOST_LANES, MOST_NUMBERS / numbers));
    Lanes<T> some{std::vector<T>(together * rows * tangent), std::vector<T>(together * rows), rows, tangent};
    std::vector<i64> done(plan.products.size(), 0), done_of_variables(plan.variables.size(), 0);
    if (!rows) return;
    for (i64 first = 0; first < lanes; first += together) {
        const i64 last = std::min(first + together, lanes), have = last - first;
        for (i64 n = 0; n < rows * tangent; n++) {
            const T* line = jacobian + n / tangent * by_row + n % tangent * by_tangent + first * by_lane;
            for (i64 k = 0; k < have; k++) some.jacobian[k * numbers + n] = line[k * by_lane];
        }
        if (gradient)
            for (i64 r = 0; r < rows; r++)
                for (i64 k = 0; k < have; k++)
                    some.residual[k * rows + r] = residual[r * residual_by_row + (first + k) * residual_by_lane];
        with_size<2, 3, 6>(rows, [&](auto r) {
            for (std::size_t p = 0; values && p < plan.products.size(); p++) {
                const i64 from = done[p];
                done[p] = end_of(plan.products[p].lanes, from, last);
                add_products(some, first, plan.products[p], from, done[p], r, values);
            }
            for (std::size_t v = 0; gradient && v < plan.variables.size(); v++) {
                const i64 from = done_of_variables[v];
                done_of_variables[v] = end_of(plan.variables[v].lanes, from, last);
                add_gradient(some, first, plan.variables[v], from, done_of_variables[v], r, gradient);
            }
        });
    }
}

// A symmetric matrix per lane, where J^T J of these lanes goes. Neighbouring lanes lie in the same lines of the cache.
template <class T>
void add_matrices(const T* matrices, i64 by_row, i64 by_column, i64 by_lane, T* values, const Plan& plan) {
    for (const Products& of : plan.products)
        with_size<3, 6, 9>(of.width, [&](auto width) {
            const T* own = matrices + of.first * by_row + of.second * by_column;
            for (i64 e = 0; e < of.lanes.count; e++) {
                const T* from = own + of.lanes[e] * by_lane;
                T* to = values + of.offsets[e];
                for (i64 a = 0; a < of.height; a++)
                    for (i64 b = 0; b < width; b++) to[a * width + b] += from[a * by_row + b * by_column];
            }
        });
}

}  // namespace

#define MSLSQ_DEFINE(T, type)                                                                                       \
    MSLSQ_EXPORT(normal_equations, type)                                                                            \
    (i64 batch, const T* jacobian, i64 by_entry, i64 by_row, i64 by_tangent, i64 by_lane, const T* residual,        \
     i64 residual_by_entry, i64 residual_by_row, i64 residual_by_lane, i64 rows, i64 tangent, i64 lanes, T* values, \
     i64 num_values, T* gradient, i64 num_columns, const i64* memory, const i64* places, const i64* numbers) {      \
        const Plan plan(PlanReader(memory, places, numbers));                                                       \
        for (i64 b = 0; b < batch; b++)                                                                             \
            add_normal_equations<T>(jacobian + b * by_entry, by_row, by_tangent, by_lane,                           \
                                    residual + b * residual_by_entry, residual_by_row, residual_by_lane, rows,      \
                                    tangent, lanes, num_values ? values + b * num_values : nullptr,                 \
                                    num_columns ? gradient + b * num_columns : nullptr, plan);                      \
    }                                                                                                               \
    MSLSQ_EXPORT(placed_matrices, type)                                                                             \
    (i64 batch, const T* matrices, i64 by_entry, i64 by_row, i64 by_column, i64 by_lane, T* values, i64 num_values, \
     const i64* memory, const i64* places, const i64* numbers) {                                                    \
        const Plan plan(PlanReader(memory, places, numbers));                                                       \
        for (i64 b = 0; b < batch; b++)                                                                             \
            add_matrices<T>(matrices + b * by_entry, by_row, by_column, by_lane, values + b * num_values, plan);    \
    }

MSLSQ_DEFINE(double, f64)
MSLSQ_DEFINE(float, f32)

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
