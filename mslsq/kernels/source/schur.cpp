// The elimination of small blocks: factor them, carry them over to the kept blocks, and back again.
//
// All work is in float64, whatever the matrix is: in float32 the difference U - Y Y^T loses what the points leave of the
// cameras. Every array has the batch first; entries that are not `regular` are left alone. The plan is made by
// mslsq/linear/schur/plan.py, which names the parts: V = L L^T, Y = W L^-T.
//
// It goes piece by piece: the eliminated blocks of one are factored, their Y formed and its products subtracted while all
// of that is in the cache. Y is not kept (19 MB for BAL 16-22106): the way back multiplies by W instead.

#include "export.h"
#include "plan.h"
#include "sizes.h"
#include "small_products.h"

namespace mslsq {
namespace MSLSQ_TARGET {
namespace {

// The groups of mslsq/linear/schur/tables.py, field by field.
struct Pivots {
    i64 size;
    Array source, column, triangle, right, pieces;

    explicit Pivots(PlanReader& plan)
        : size(plan.number()),
          source(plan.array()),
          column(plan.array()),
          triangle(plan.array()),
          right(plan.array()),
          pieces(plan.array()) {}
};

struct Edges {
    i64 kept_size, size, by_row, by_column, group;
    Array pivot, source, triangle, right, column, target, pieces;

    explicit Edges(PlanReader& plan)
        : kept_size(plan.number()),
          size(plan.number()),
          by_row(plan.number()),
          by_column(plan.number()),
          group(plan.number()),
          pivot(plan.array()),
          source(plan.array()),
          triangle(plan.array()),
          right(plan.array()),
          column(plan.array()),
          target(plan.array()),
          pieces(plan.array()) {}
};

struct Pairs {
    i64 height, size, width;
    Array left, right, start, target, stride, pieces;
    std::vector<Part> parts;

    explicit Pairs(PlanReader& plan)
        : height(plan.number()),
          size(plan.number()),
          width(plan.number()),
          left(plan.array()),
          right(plan.array()),
          start(plan.array()),
          target(plan.array()),
          stride(plan.array()),
          pieces(plan.array()),
          parts(parts_of(height, width)) {}
};

struct Kept {
    i64 height, width, is_diagonal;
    Array source, target, stride, column;

    explicit Kept(PlanReader& plan)
        : height(plan.number()),
          width(plan.number()),
          is_diagonal(plan.number()),
          source(plan.array()),
          target(plan.array()),
          stride(plan.array()),
          column(plan.array()) {}
};

struct Tables {
    i64 unknowns, reduced, matrix_size, triangles, num_factors, room, num_pieces;
    Array kept_unknowns, begin;
    std::vector<Pivots> pivots;
    std::vector<Edges> edges;
    std::vector<Pairs> pairs;
    std::vector<Kept> kept;

    explicit Tables(PlanReader plan)
        : unknowns(plan.number()),
          reduced(plan.number()),
          matrix_size(plan.number()),
          triangles(plan.number()),
          num_factors(plan.number()),
          room(plan.number()),
          num_pieces(plan.number()),
          kept_unknowns(plan.array()),
          begin(plan.array()),
          pivots(plan.parts<Pivots>()),
          edges(plan.parts<Edges>()),
          pairs(plan.parts<Pairs>()),
          kept(plan.parts<Kept>()) {}
};

// One entry of the batch.
template <class T>
struct Entry {
    const T *values, *shift, *rhs;
    double *L, *carried, *reduced_rhs, *matrix;
};

template <class T, class K>
bool factor_pivot(const T* V, const T* shift, const T* rhs, double* L, double* carried, K k) {
    for (i64 j = 0; j < k; j++)
        for (i64 i = j; i < k; i++) {
            double value = V[i * k + j];
            if (i == j && shift) value += shift[j];
            for (i64 q = 0; q < j; q++) value -= L[i * k + q] * L[j * k + q];
            if (i == j) {
                if (!(value > 0 && value <= std::numeric_limits<double>::max())) return false;
                L[j * k + j] = 1 / std::sqrt(value);  // of the diagonal only its inverse is ever used
            } else {
                L[i * k + j] = value * L[j * k + j];
            }
        }
    for (i64 j = 0; j < k; j++) {
        double value = rhs[j];
        for (i64 q = 0; q < j; q++) value -= L[j * k + q] * carried[q];
        carried[j] = value * L[j * k + j];
    }
    return true;
}

// What is read next is asked for so many blocks before: 3.9 ms become 3.0 for 22,106 points, whose W come from memory.
constexpr i64 AHEAD = 16;

template <class T>
inline void prefetch(const T* from, i64 count) {
    for (i64 at = 0; at < count; at += 64 / sizeof(T)) __builtin_prefetch(from + at);
}

// V + shift = L L^T and L^-1 c of the blocks first..last; false with a pivot that is not positive.
template <class T>
bool factor_pivots(const Entry<T>& of, const Pivots& group, i64 first, i64 last) {
    bool regular = true;
    with_size<1, 2, 3, 4, 6>(group.size, [&](auto k) {
        for (i64 p = first; p < last && regular; p++) {
            const i64 column = group.column[p];
            if (p + AHEAD < last) prefetch(of.values + group.source[p + AHEAD], k * k);
            regular = factor_pivot(of.values + group.source[p], of.shift ? of.shift + column : nullptr, of.rhs + column,
                                   of.L + group.triangle[p], of.carried + group.right[p], k);
        }
    });
    return regular;
}

// One edge of `carry_over`: Y^T from W^T, whose entry (j, r) is at j by_row + r by_column.
template <class T, class K, class A>
void carry_edge(const T* W, i64 by_row, i64 by_column, const double* __restrict L, const double* __restrict c,
                double* __restrict Y, double* __restrict R, K k, A rows) {
    for (i64 j = 0; j < k; j++) {
        for (i64 r = 0; r < rows; r++) Y[j * rows + r] = W[j * by_row + r * by_column];
        for (i64 q = 0; q < j; q++)
            for (i64 r = 0; r < rows; r++) Y[j * rows + r] -= L[j * k + q] * Y[q * rows + r];
        for (i64 r = 0; r < rows; r++) Y[j * rows + r] *= L[j * k + j];
    }
    for (i64 j = 0; j < k; j++)
        for (i64 r = 0; r < rows; r++) R[r] -= Y[j * rows + r] * c[j];
}

// The same on the rows from AT on, in registers of W numbers: nine rows are eight and one. (Registers that overlap need no
// fewer operations, and what two stores have written cannot be handed to the next load.)
template <int K, int ROWS, int AT, int W>
inline void carry_rows(const double* from, const double* L, const double* c, double* Y, double* R) {
    if constexpr (AT < ROWS && W > ROWS - AT) {
        carry_rows<K, ROWS, AT, W / 2>(from, L, c, Y, R);
    } else if constexpr (AT < ROWS) {
        reg<double, W> y[K], right = load_register<W>(R + AT);
#pragma GCC unroll 3
        for (int j = 0; j < K; j++) {
            y[j] = load_register<W>(from + j * ROWS + AT);
#pragma GCC unroll 3
            for (int q = 0; q < j; q++) y[j] -= y[q] * L[j * K + q];
            y[j] *= L[j * K + j];
            right -= y[j] * c[j];
            store_register<W>(Y + j * ROWS + AT, y[j]);
        }
        store_register<W>(R + AT, right);
        carry_rows<K, ROWS, AT + W, W>(from, L, c, Y, R);
    }
}

template <class T, int K, int ROWS>
void carry_edge(const T* W, i64 by_row, i64 by_column, const double* L, const double* c, double* Y, double* R, Known<K>,
                Known<ROWS>) {
    if constexpr (sizeof(T) == sizeof(double)) {
        if (by_column == 1) return carry_rows<K, ROWS, 0, WIDE>(W, L, c, Y, R);
    }
    double own[K * ROWS];
    for (int j = 0; j < K; j++)
        for (int r = 0; r < ROWS; r++) own[j * ROWS + r] = W[j * by_row + r * by_column];
    carry_rows<K, ROWS, 0, WIDE>(own, L, c, Y, R);
}

// Y^T = L^-1 W^T of the edges first..last, and b - Y L^-1 c. Y begins with number `begin`.
template <class T>
void carry_over(const Entry<T>& of, const Edges& group, i64 first, i64 last, double* Y, i64 begin) {
    with_size<2, 3>(group.size, [&](auto k) {
        with_size<3, 6, 7, 9>(group.kept_size, [&](auto a) {
            for (i64 e = first; e < last; e++) {
                if (e + AHEAD < last) prefetch(of.values + group.source[e + AHEAD], a * k);
                carry_edge(of.values + group.source[e], group.by_row, group.by_column, of.L + group.triangle[e],
                           of.carried + group.right[e], Y + (group.target[e] - begin),
                           of.reduced_rhs + group.column[e], k, a);
            }
        });
    });
}

// The blocks of U, with the damping on their diagonal.
template <class T>
void place_kept(const Entry<T>& of, const Kept& group) {
    for (i64 e = 0; e < group.source.count; e++) {
        const T* from = of.values + group.source[e];
        double* to = of.matrix + group.target[e];
        const i64 stride = group.stride[e];
        for (i64 i = 0; i < group.height; i++) {
            for (i64 j = 0; j < group.width; j++) to[i * stride + j] += from[i * group.width + j];
            if (group.is_diagonal && of.shift) to[i * stride + i] += of.shift[group.column[e] + i];
        }
    }
}

// One entry of the batch, reduced; false with a pivot that is not positive.
template <class T>
bool reduce_entry(const Entry<T>& of, const Tables& plan, double* Y) {
    for (const Kept& group : plan.kept) place_kept(of, group);
    for (i64 p = 0; p < plan.num_pieces; p++) {
        for (const Pivots& group : plan.pivots)
            if (!factor_pivots(of, group, group.pieces[p], group.pieces[p + 1])) return false;
        for (const Edges& group : plan.edges)
            carry_over(of, group, group.pieces[p], group.pieces[p + 1], Y, plan.begin[p]);
        for (const Pairs& group : plan.pairs)
            subtract_pairs({Y, plan.begin[p], group.left.data, group.right.data, group.size, group.height, group.width},
                           group.parts, group.pieces[p], group.pieces[p + 1], group.start.data, group.target.data,
                           group.stride.data, of.matrix);
    }
    return true;
}

// lost += W^T x for the kept unknowns x, of every eliminated block.
template <class T>
void carry_back(const T* values, const double* kept, double* lost, const Edges& group, i64 first, i64 last) {
    with_size<2, 3>(group.size, [&](auto k) {
        with_size<3, 6, 7, 9>(group.kept_size, [&](auto a) {
            with_size<1>(group.by_column, [&](auto by_column) {
                for (i64 e = first; e < last; e++) {
                    const T* W = values + group.source[e];
                    const double* x = kept + group.column[e];
                    double* to = lost + group.right[e];
                    for (i64 j = 0; j < k; j++) {
                        double value = 0;
                        for (i64 r = 0; r < a; r++) value += W[j * group.by_row + r * by_column] * x[r];
                        to[j] += value;
                    }
                }
            });
        });
    });
}

// y = L^-T (L^-1 c - L^-1 W^T x), where it belongs; in place of `lost`.
inline void solve_pivots(const double* triangles, const double* carried, double* lost, double* out, const Pivots& group,
                         i64 first, i64 last) {
    with_size<1, 2, 3, 4, 6>(group.size, [&](auto k) {
        for (i64 p = first; p < last; p++) {
            const double *L = triangles + group.triangle[p], *c = carried + group.right[p];
            double *y = lost + group.right[p], *to = out + group.column[p];
            for (i64 j = 0; j < k; j++) {
                for (i64 q = 0; q < j; q++) y[j] -= L[j * k + q] * y[q];
                y[j] *= L[j * k + j];
            }
            for (i64 j = k - 1; j >= 0; j--) {
                y[j] = c[j] - y[j];
                for (i64 q = j + 1; q < k; q++) y[j] -= L[q * k + j] * y[q];
                to[j] = y[j] *= L[j * k + j];
            }
        }
    });
}

template <class T>
void reduce(i64 batch, const T* values, i64 num_values, const T* shift, i64 shifts, const T* rhs, double* triangles,
            double* carried, double* reduced_rhs, double* matrix, bool* regular, double* room, const Tables& plan) {
    const i64 eliminated = plan.unknowns - plan.reduced;
    for (i64 b = 0; b < batch; b++) {
        const Entry<T> of{values + b * num_values,
                          shifts ? shift + b * shifts : nullptr,
                          rhs + b * plan.unknowns,
                          triangles + b * plan.triangles,
                          carried + b * eliminated,
                          reduced_rhs + b * plan.reduced,
                          matrix + b * plan.matrix_size};
        regular[b] = reduce_entry(of, plan, room);
    }
}

template <class T>
void back(i64 batch, const T* values, i64 num_values, const double* triangles, const double* carried, const double* kept,
          double* lost, double* out, const Tables& plan) {
    const i64 eliminated = plan.unknowns - plan.reduced;
    for (i64 b = 0; b < batch; b++)
        for (i64 p = 0; p < plan.num_pieces; p++) {
            for (const Edges& group : plan.edges)
                carry_back(values + b * num_values, kept + b * plan.reduced, lost + b * eliminated, group,
                           group.pieces[p], group.pieces[p + 1]);
            for (const Pivots& group : plan.pivots)
                solve_pivots(triangles + b * plan.triangles, carried + b * eliminated, lost + b * eliminated,
                             out + b * plan.unknowns, group, group.pieces[p], group.pieces[p + 1]);
        }
}

}  // namespace

#define MSLSQ_DEFINE(T, type)                                                                                       \
    MSLSQ_EXPORT(schur_reduce, type)                                                                                \
    (i64 batch, const T* values, i64 num_values, const T* shift, i64 shifts, const T* rhs, double* triangles,       \
     double* carried, double* reduced_rhs, double* matrix, bool* regular, double* room, const i64* memory,          \
     const i64* places, const i64* numbers) {                                                                       \
        reduce<T>(batch, values, num_values, shift, shifts, rhs, triangles, carried, reduced_rhs, matrix, regular,  \
                  room, Tables(PlanReader(memory, places, numbers)));                                               \
    }                                                                                                               \
    MSLSQ_EXPORT(schur_back, type)                                                                                  \
    (i64 batch, const T* values, i64 num_values, const double* triangles, const double* carried,                    \
     const double* kept, double* lost, double* out, const i64* memory, const i64* places, const i64* numbers) {     \
        back<T>(batch, values, num_values, triangles, carried, kept, lost, out,                                     \
                Tables(PlanReader(memory, places, numbers)));                                                       \
    }

MSLSQ_DEFINE(double, f64)
MSLSQ_DEFINE(float, f32)

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
