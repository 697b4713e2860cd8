// The elimination of small blocks: factor them, carry them over to the kept blocks, and back again.
//
// All work is in float64, whatever the matrix is: in float32 the difference U - Y Y^T loses what the points leave of the
// cameras. Every array has the batch first; of entries that are not `regular` all is zero. The plan is made by
// mslsq/linear/schur/plan.py, which names the parts: V = L L^T, Y = W L^-T.
//
// It goes piece by piece: the eliminated blocks of one are factored, their Y formed and its products subtracted while all
// of that is in the cache. Y is not kept (19 MB for BAL 16-22106): the way back multiplies by W instead.

#include "export.h"
#include "plan.h"
#include "sizes.h"
#include "small_products.h"
#include "symmetric_products.h"
#include "workspace.h"

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

    // Where Y^T of an edge is among those of its piece, and how far apart its rows are.
    i64 place(i64 e) const { return target[e] & 0xffffffff; }
    i64 stride(i64 e) const { return target[e] >> 32; }
};

struct Pairs {
    i64 height, size, width, left_stride, right_stride;
    Array factors, start, block, target, stride, pieces;
    Sums sums;

    explicit Pairs(PlanReader& plan)
        : height(plan.number()),
          size(plan.number()),
          width(plan.number()),
          left_stride(plan.number()),
          right_stride(plan.number()),
          factors(plan.array()),
          start(plan.array()),
          block(plan.array()),
          target(plan.array()),
          stride(plan.array()),
          pieces(plan.array()),
          sums(height, width, size, left_stride < height) {}

    // Is nothing added to the sums of a block later?
    bool at_once() const { return block.count == target.count; }

    // Numbers that the sums of all blocks take, or those of one at a time.
    i64 room() const { return sums.size * (at_once() ? 1 : target.count); }
};

struct Alike {
    i64 size, width, stride, slots;
    Array start, count, set, last, slot, first, row, column, height, breadth, target, distance, pieces;
    Triangle sums;

    explicit Alike(PlanReader& plan)
        : size(plan.number()),
          width(plan.number()),
          stride(plan.number()),
          slots(plan.number()),
          start(plan.array()),
          count(plan.array()),
          set(plan.array()),
          last(plan.array()),
          slot(plan.array()),
          first(plan.array()),
          row(plan.array()),
          column(plan.array()),
          height(plan.array()),
          breadth(plan.array()),
          target(plan.array()),
          distance(plan.array()),
          pieces(plan.array()),
          sums(width) {}

    // Numbers that the sums of all slots take.
    i64 room() const { return sums.size * slots; }
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
    std::vector<Alike> alike;
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
          alike(plan.parts<Alike>()),
          kept(plan.parts<Kept>()) {}
};

// One entry of the batch.
template <class T>
struct Entry {
    const T *values, *shift, *rhs;
    i64 num_values;
    double *L, *carried, *reduced_rhs, *matrix;
};

// The largest pivot whose inverse is a normal number.
constexpr double MOST = 1 / std::numeric_limits<double>::min();

template <class T, class K>
bool factor_pivot(const T* V, const T* shift, const T* rhs, double* L, double* carried, K k) {
    for (i64 j = 0; j < k; j++)
        for (i64 i = j; i < k; i++) {
            double value = V[i * k + j];
            if (i == j && shift) value += shift[j];
            for (i64 q = 0; q < j; q++) value -= L[i * k + q] * L[j * k + q];
            if (i == j) {
                if (!(value > 0 && value <= MOST)) return false;
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
constexpr i64 AHEAD = 32;

template <class T>
inline void prefetch(const T* from, i64 count) {
    for (i64 at = 0; at < count; at += 64 / sizeof(T)) __builtin_prefetch(from + at);
}

template <class T, class K>
bool factor_one_by_one(const Entry<T>& of, const Pivots& group, i64 first, i64 last, K k) {
    bool regular = true;
    for (i64 p = first; p < last && regular; p++) {
        const i64 column = group.column[p];
        if (p + AHEAD < group.source.count) prefetch(of.values + group.source[p + AHEAD], k * k);
        regular = factor_pivot(of.values + group.source[p], of.shift ? of.shift + column : nullptr, of.rhs + column,
                               of.L + group.triangle[p], of.carried + group.right[p], k);
    }
    return regular;
}

// The numbers at places of their own, as one register.
template <class F>
inline reg<double> gathered(F number) {
    reg<double> v{};
#pragma GCC unroll 8
    for (int lane = 0; lane < WIDE; lane++) v[lane] = number(lane);
    return v;
}

// The same for as many at once as a register has numbers: one by one each waits for its square roots and divisions. Roots
// are taken last, all at once: V = M D M^T with M's diagonal one needs divisions alone, and L = M sqrt(D). Where fewer
// blocks are left, the last is done several times.
template <class T, int K>
bool factor_together(const Entry<T>& of, const Pivots& group, i64 first, i64 last, Known<K>) {
    for (i64 p = first; p < last; p += WIDE) {
        const T *V[WIDE], *rhs[WIDE], *shift[WIDE];
        double *to[WIDE], *right[WIDE];
#pragma GCC unroll 8
        for (int lane = 0; lane < WIDE; lane++) {
            const i64 pivot = std::min(p + lane, last - 1), column = group.column[pivot];
            if (pivot + AHEAD < group.source.count) prefetch(of.values + group.source[pivot + AHEAD], K * K);
            V[lane] = of.values + group.source[pivot], rhs[lane] = of.rhs + column, shift[lane] = of.shift + column;
            to[lane] = of.L + group.triangle[pivot], right[lane] = of.carried + group.right[pivot];
        }
        reg<double> M[K][K], carried[K], pivots[K], inverse[K], scale[K];
#pragma GCC unroll 6
        for (int i = 0; i < K; i++) {
#pragma GCC unroll 6
            for (int j = 0; j <= i; j++) M[i][j] = gathered([&](int lane) { return V[lane][i * K + j]; });
            if (of.shift) M[i][i] += gathered([&](int lane) { return shift[lane][i]; });
            carried[i] = gathered([&](int lane) { return rhs[lane][i]; });
        }
#pragma GCC unroll 6
        for (int j = 0; j < K; j++) {
            pivots[j] = M[j][j];
            inverse[j] = 1 / pivots[j];
#pragma GCC unroll 6
            for (int i = j + 1; i < K; i++) {
                const reg<double> factor = M[i][j] * inverse[j];
#pragma GCC unroll 6
                for (int q = j + 1; q <= i; q++) M[i][q] -= factor * M[q][j];
                carried[i] -= factor * carried[j];
            }
        }
        bool regular = true;
#pragma GCC unroll 6
        for (int j = 0; j < K; j++) {
#pragma GCC unroll 8
            for (int lane = 0; lane < WIDE; lane++) {
                scale[j][lane] = std::sqrt(pivots[j][lane]);
                regular &= pivots[j][lane] > 0 && pivots[j][lane] <= MOST;
            }
            scale[j] *= inverse[j];
        }
        if (!regular) return false;
#pragma GCC unroll 6
        for (int i = 0; i < K; i++) {
#pragma GCC unroll 6
            for (int j = 0; j <= i; j++) {
                const reg<double> number = j < i ? M[i][j] * scale[j] : scale[i];
#pragma GCC unroll 8
                for (int lane = 0; lane < WIDE; lane++) to[lane][i * K + j] = number[lane];
            }
            const reg<double> number = carried[i] * scale[i];
#pragma GCC unroll 8
            for (int lane = 0; lane < WIDE; lane++) right[lane][i] = number[lane];
        }
    }
    return true;
}

// V + shift = L L^T and L^-1 c of the blocks first..last; false with a pivot that is not positive.
template <class T>
bool factor_pivots(const Entry<T>& of, const Pivots& group, i64 first, i64 last) {
    bool regular = true;
    with_size<1, 2, 3, 4, 6>(group.size, [&](auto k) {
        if constexpr (WIDE >= 4 && !std::is_same_v<decltype(k), i64>)
            regular = factor_together(of, group, first, last, k);
        else
            regular = factor_one_by_one(of, group, first, last, k);
    });
    return regular;
}

// One edge: Y^T from W^T, whose entry (j, r) is at j by_row + r by_column, and R - Y c. Where rows of Y^T are closer than
// they are long, the last number of each stands behind all of them.
template <class T>
void carry_edge(const T* W, const Edges& group, i64 stride, const double* __restrict L, const double* __restrict c,
                double* __restrict Y, double* __restrict R) {
    const i64 k = group.size, rows = group.kept_size, together = std::min(rows, stride);
    for (i64 j = 0; j < k; j++) {
        double* own = Y + j * stride;
        for (i64 r = 0; r < together; r++) own[r] = W[j * group.by_row + r * group.by_column];
        for (i64 q = 0; q < j; q++)
            for (i64 r = 0; r < together; r++) own[r] -= L[j * k + q] * Y[q * stride + r];
        for (i64 r = 0; r < together; r++) own[r] *= L[j * k + j];
    }
    for (i64 j = 0; j < k; j++)
        for (i64 r = 0; r < together; r++) R[r] -= Y[j * stride + r] * c[j];
    if (together == rows) return;
    double* last = Y + k * stride;
    for (i64 j = 0; j < k; j++) {
        double value = W[j * group.by_row + together * group.by_column];
        for (i64 q = 0; q < j; q++) value -= L[j * k + q] * last[q];
        last[j] = value * L[j * k + j];
        R[together] -= last[j] * c[j];
    }
    for (i64 j = k; j < in_registers(k) * WIDE; j++) last[j] = 0;
}

// The first W numbers of a register.
template <int W>
inline reg<double, W> front(const reg<double>& v) {
    if constexpr (W == WIDE)
        return v;
    else
        return v[0] - reg<double, W>{};
}

// L and L^-1 c of one eliminated block, each number in a register of its own: read once for all of its edges.
template <int K>
struct Carrier {
    reg<double> L[K][K], c[K];

    Carrier(const double* triangle, const double* carried) {
#pragma GCC unroll 3
        for (int j = 0; j < K; j++) {
#pragma GCC unroll 3
            for (int q = 0; q <= j; q++) L[j][q] = triangle[j * K + q] - reg<double>{};
            c[j] = carried[j] - reg<double>{};
        }
    }
};

// `carry_edge` on the rows from AT on, one register of them after the other. Of the last one what lies beyond the rows is
// computed, too, and belongs to nothing; a single row is done as a number, and nothing is written behind it. (A register of
// zeros there, which mostly begins on one line of the cache and ends on the next, took a fifth of the time of edges with
// AVX-512.) Products of whole registers read what is there.
template <int K, int ROWS, int AT>
inline void carry_rows(const double* from, const Carrier<K>& by, double* Y, i64 stride, double* R) {
    constexpr int HERE = ROWS - AT < WIDE ? ROWS - AT : WIDE, W = HERE == 1 ? 1 : WIDE;
    reg<double, W> y[K], lost{};
#pragma GCC unroll 3
    for (int j = 0; j < K; j++) {
        y[j] = load_register<W>(from + j * ROWS + AT);
#pragma GCC unroll 3
        for (int q = 0; q < j; q++) y[j] -= y[q] * front<W>(by.L[j][q]);
        y[j] *= front<W>(by.L[j][j]);
        lost += y[j] * front<W>(by.c[j]);
        store_register<W>(Y + j * stride + AT, y[j]);
    }
    if constexpr (HERE == W) {
        store_register<W>(R + AT, load_register<W>(R + AT) - lost);
    } else {
        alignas(REGISTER_BYTES) double part[WIDE];
        store_register<WIDE>(part, lost);
        subtract_part<WIDE / 2>(R + AT, part, HERE);
    }
    if constexpr (AT + HERE < ROWS) carry_rows<K, ROWS, AT + HERE>(from, by, Y, stride, R);
}

// The same of TILE + 1 rows where the last number of each row stands behind all of them.
template <int K>
inline void carry_loose(const double* from, const Carrier<K>& by, double* Y, double* R) {
    static_assert(K <= TILE, "the last numbers are in one register where it is the widest");
    constexpr int N = TILE / WIDE;
    double number[K], lost_number = 0;
#pragma GCC unroll 3
    for (int j = 0; j < K; j++) {
        number[j] = from[j * (TILE + 1) + TILE];
#pragma GCC unroll 3
        for (int q = 0; q < j; q++) number[j] -= number[q] * by.L[j][q][0];
        number[j] *= by.L[j][j][0];
        lost_number += number[j] * by.c[j][0];
    }
#pragma GCC unroll 4
    for (int n = 0; n < N; n++) {
        reg<double> y[K], lost{};
#pragma GCC unroll 3
        for (int j = 0; j < K; j++) {
            y[j] = load_register<WIDE>(from + j * (TILE + 1) + n * WIDE);
#pragma GCC unroll 3
            for (int q = 0; q < j; q++) y[j] -= y[q] * by.L[j][q];
            y[j] *= by.L[j][j];
            lost += y[j] * by.c[j];
            store_register<WIDE>(Y + j * TILE + n * WIDE, y[j]);
        }
        store_register<WIDE>(R + n * WIDE, load_register<WIDE>(R + n * WIDE) - lost);
    }
    for (int n = 0; n < in_registers(K); n++) {
        reg<double> last{};
#pragma GCC unroll 8
        for (int m = 0; m < WIDE; m++)
            if (n * WIDE + m < K) last[m] = number[n * WIDE + m];
        store_register<WIDE>(Y + K * TILE + n * WIDE, last);
    }
    R[TILE] -= lost_number;
}

// One or the other.
template <int K, int ROWS>
inline void carry_block(const double* from, const Carrier<K>& by, double* Y, i64 stride, double* R) {
    if constexpr (ROWS == TILE + 1)
        if (stride == TILE) return carry_loose<K>(from, by, Y, R);
    carry_rows<K, ROWS, 0>(from, by, Y, stride, R);
}

template <class T, class K, class A>
void carry_edges(const Entry<T>& of, const Edges& group, i64 first, i64 last, double* Y, K k, A rows) {
    for (i64 e = first; e < last; e++) {
        if (e + AHEAD < group.source.count) prefetch(of.values + group.source[e + AHEAD], rows * k);
        carry_edge(of.values + group.source[e], group, group.stride(e), of.L + group.triangle[e],
                   of.carried + group.right[e], Y + group.place(e), of.reduced_rhs + group.column[e]);
    }
}

template <class T, int K, int ROWS>
void carry_edges(const Entry<T>& of, const Edges& group, i64 first, i64 last, double* Y, Known<K>, Known<ROWS>) {
    for (i64 e = first; e < last;) {
        const i64 triangle = group.triangle[e];
        const Carrier<K> by(of.L + triangle, of.carried + group.right[e]);
        for (; e < last && group.triangle[e] == triangle; e++) {
            if (e + AHEAD < group.source.count) prefetch(of.values + group.source[e + AHEAD], K * ROWS);
            const i64 source = group.source[e], stride = group.stride(e);
            const T* W = of.values + source;
            double *to = Y + group.place(e), *R = of.reduced_rhs + group.column[e];
            if constexpr (sizeof(T) == sizeof(double)) {
                if (group.by_column == 1 && source + K * ROWS + WIDE <= of.num_values) {
                    carry_block<K, ROWS>(W, by, to, stride, R);
                    continue;
                }
            }
            double own[K * ROWS + WIDE] = {};
            for (int j = 0; j < K; j++)
                for (int r = 0; r < ROWS; r++) own[j * ROWS + r] = W[j * group.by_row + r * group.by_column];
            carry_block<K, ROWS>(own, by, to, stride, R);
        }
    }
}

// Y^T = L^-1 W^T of the edges first..last, and b - Y L^-1 c.
template <class T>
void carry_over(const Entry<T>& of, const Edges& group, i64 first, i64 last, double* Y) {
    with_size<2, 3>(group.size, [&](auto k) {
        with_size<3, 6, 7, 9>(group.kept_size, [&](auto a) { carry_edges(of, group, first, last, Y, k, a); });
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

// The products of a piece are added to the sums of the blocks, which are taken off the matrix at last: in rows of a dense
// matrix the numbers of a block lie on as many pages of memory as it has rows. A block with one sum alone at once.
inline void subtract_pairs(const Pairs& group, i64 piece, const Tables& plan, const double* Y, double* sums,
                           double* matrix) {
    const bool at_once = group.at_once();
    const Factors of{Y, group.factors.data, group.size, group.left_stride, group.right_stride};
    const auto sums_of = [&](i64 block) { return at_once ? sums : sums + block * group.sums.size; };
    const auto take_off = [&](i64 block) {
        group.sums.take_off(sums_of(block), matrix + group.target[block], group.stride[block]);
    };
    for (i64 t = group.pieces[piece]; t < group.pieces[piece + 1]; t++) {
        group.sums.add(of, group.start[t], group.start[t + 1], sums_of(group.block[t]));
        if (at_once) take_off(group.block[t]);
    }
    if (!at_once && piece == plan.num_pieces - 1)
        for (i64 block = 0; block < group.target.count; block++) take_off(block);
}

// Y Y^T of the clusters of a piece, added to the sums of their sets, which are taken off the matrix when they are done.
inline void subtract_alike(const Alike& group, i64 piece, const double* Y, double* sums, double* matrix) {
    for (i64 c = group.pieces[piece]; c < group.pieces[piece + 1]; c++) {
        const i64 set = group.set[c];
        double* own = sums + group.slot[set] * group.sums.size;
        group.sums.add(Y + group.start[c], group.size * group.count[c], group.stride, own);
        if (!group.last[c]) continue;
        for (i64 b = group.first[set]; b < group.first[set + 1]; b++)
            group.sums.take_off(own, group.row[b], group.column[b], group.height[b], group.breadth[b],
                                matrix + group.target[b], group.distance[b]);
        std::fill_n(own, group.sums.size, 0.0);
    }
}

// One entry of the batch, reduced; false with a pivot that is not positive.
template <class T>
bool reduce_entry(const Entry<T>& of, const Tables& plan, double* Y, double* sums) {
    for (const Kept& group : plan.kept) place_kept(of, group);
    for (i64 p = 0; p < plan.num_pieces; p++) {
        for (const Pivots& group : plan.pivots)
            if (!factor_pivots(of, group, group.pieces[p], group.pieces[p + 1])) return false;
        for (const Edges& group : plan.edges)
            carry_over(of, group, group.pieces[p], group.pieces[p + 1], Y);
        double* own = sums;
        for (const Pairs& group : plan.pairs) {
            subtract_pairs(group, p, plan, Y, own, of.matrix);
            own += group.room();
        }
        for (const Alike& group : plan.alike) {
            subtract_alike(group, p, Y, own, of.matrix);
            own += group.room();
        }
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
            double* carried, double* reduced_rhs, double* matrix, bool* regular, const Tables& plan) {
    const i64 eliminated = plan.unknowns - plan.reduced;
    i64 all_sums = TILE;
    for (const Pairs& group : plan.pairs) all_sums += group.room();
    for (const Alike& group : plan.alike) all_sums += group.room();
    const i64 factors = padded(plan.room) + TILE;  // registers are read beyond the last block
    Numbers<double> own;
    double *Y = room_for(factors + all_sums, own), *sums = Y + factors;
    std::fill(Y + plan.room, sums, 0.0);
    const FlushToZero flush(true);  // beside Y stands what was in memory: denormal numbers there took four times as long
    for (i64 b = 0; b < batch; b++) {
        const Entry<T> of{values + b * num_values,
                          shifts ? shift + b * shifts : nullptr,
                          rhs + b * plan.unknowns,
                          num_values,
                          triangles + b * plan.triangles,
                          carried + b * eliminated,
                          reduced_rhs + b * plan.reduced,
                          matrix + b * plan.matrix_size};
        for (i64 i = 0; i < plan.reduced; i++) of.reduced_rhs[i] = of.rhs[plan.kept_unknowns[i]];
        std::fill_n(of.matrix, plan.matrix_size, 0.0);
        std::fill_n(sums, all_sums, 0.0);
        regular[b] = reduce_entry(of, plan, Y, sums);
        if (regular[b]) continue;
        std::fill_n(of.L, plan.triangles, 0.0);
        std::fill_n(of.carried, eliminated, 0.0);
        std::fill_n(of.reduced_rhs, plan.reduced, 0.0);
        std::fill_n(of.matrix, plan.matrix_size, 0.0);
    }
}

template <class T>
void back(i64 batch, const T* values, i64 num_values, const double* triangles, const double* carried, const double* kept,
          double* lost, double* out, const Tables& plan) {
    const i64 eliminated = plan.unknowns - plan.reduced;
    for (i64 b = 0; b < batch; b++) {
        const double* x = kept + b * plan.reduced;
        double *own = lost + b * eliminated, *to = out + b * plan.unknowns;
        for (i64 i = 0; i < plan.reduced; i++) to[plan.kept_unknowns[i]] = x[i];
        std::fill_n(own, eliminated, 0.0);
        for (i64 p = 0; p < plan.num_pieces; p++) {
            for (const Edges& group : plan.edges)
                carry_back(values + b * num_values, x, own, group, group.pieces[p], group.pieces[p + 1]);
            for (const Pivots& group : plan.pivots)
                solve_pivots(triangles + b * plan.triangles, carried + b * eliminated, own, to, group, group.pieces[p],
                             group.pieces[p + 1]);
        }
    }
}

}  // namespace

#define MSLSQ_DEFINE(T, type)                                                                                       \
    MSLSQ_EXPORT(schur_reduce, type)                                                                                \
    (i64 batch, const T* values, i64 num_values, const T* shift, i64 shifts, const T* rhs, double* triangles,       \
     double* carried, double* reduced_rhs, double* matrix, bool* regular, const i64* memory,                        \
     const i64* places, const i64* numbers) {                                                                       \
        reduce<T>(batch, values, num_values, shift, shifts, rhs, triangles, carried, reduced_rhs, matrix, regular,  \
                  Tables(PlanReader(memory, places, numbers)));                                               \
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
