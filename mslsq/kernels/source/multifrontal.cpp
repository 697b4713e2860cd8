// Multifrontal Cholesky factorisation and triangular solves on a plan made once (Duff and Reid 1983; Liu 1992).
//
// Every supernode is a dense front: a panel of its own columns, stored by columns inside the factor, and the square
// update matrix that it leaves to its parent, on a stack. Assemble A's entries and the children's update matrices, factor
// the panel, subtract its outer product (before the children's are added, so that nothing is cleared and read again). Rows
// and columns are padded to eight: padded rows are zero, padded columns have a unit pivot. The plan is made by
// mslsq/linear/sparse/elimination.py.

#include <type_traits>

#include "export.h"
#include "large_fronts.h"
#include "tiles.h"
#include "workspace.h"

namespace mslsq {
namespace MSLSQ_TARGET {
namespace {

// A row of the table of fronts, as `elimination.plan` writes it.
struct Front {
    i64 width, padded, below, padded_below, ld, panel, update, update_ld, first;
};

// A block of A: its place, its strides by row and by column, its size, its place in the factor.
struct Entry {
    i64 source, by_row, by_column, height, width, target;
};

// Consecutive rows of a front inside its parent.
struct Run {
    i64 first, position, count;
};

// Blocks of A are read in the order of elimination: they are asked for so many blocks before.
constexpr i64 AHEAD = 16;

template <class T>
inline void prefetch(const T* A, const Entry& block) {
    const T* from = A + block.source;
    for (i64 at = 0; at < block.height * block.width; at += 64 / sizeof(T)) __builtin_prefetch(from + at);
}

// to += from on `count` numbers, mostly few (the rows of a block): in one register of every width.
template <int W, class T>
inline void add(T* to, const T* from, i64 count) {
    for (; count >= W; to += W, from += W, count -= W)
        store_register<W>(to, load_register<W>(to) + load_register<W>(from));
    if constexpr (W > 1) add<W / 2>(to, from, count);
}

// The part of a child's update matrix that belongs into the panel F of its parent, or (not PANEL) that into the parent's
// own update matrix U (lower triangles).
template <bool PANEL, class T>
void assemble(const Front& front, const Front& child, const Run* runs, i64 count, T* F, T* U) {
    const T* source = U + child.update;
    for (i64 r = 0; r < count; r++) {
        const Run run = runs[r];
        if (PANEL != (run.position < front.padded)) continue;
        T* target = PANEL ? F + front.panel + run.position * front.ld + run.position
                           : U + front.update + (run.position - front.padded) * (front.update_ld + 1);
        const i64 ld = PANEL ? front.ld : front.update_ld;
        for (i64 j = 0; j < run.count; j++, target += ld) {
            const T* column = source + (run.first + j) * child.update_ld;
            add<WIDTH<T>>(target + j, column + run.first + j, run.count - j);
            for (i64 q = r + 1; q < count; q++)
                add<WIDTH<T>>(target + (runs[q].position - run.position), column + runs[q].first, runs[q].count);
        }
    }
}

inline bool is_large(const Front& f) { return f.padded * (f.padded + f.padded_below) >= LARGE; }

// Numbers beside the stack that the large fronts need.
template <class T>
i64 room_of_large(i64 count, const Front* fronts) {
    i64 room = 0;
    for (const Front* f = fronts; f < fronts + count; f++)
        if (is_large(*f)) room = std::max(room, Groups<T>::room(f->padded + f->padded_below));
    return room;
}

// The panel of a front factored, and minus the product of the rows below with themselves written into its update matrix.
template <class T>
bool factor_small(T* panel, const Front& f, T* update) {
    T inverse[TILE];
    const i64 rows = f.padded + f.padded_below;
    for (i64 j = 0; j < f.padded; j += TILE) {
        T* at = panel + j * f.ld + j;
        subtract_eight_rows(panel + j, f.ld, panel + j, f.ld, 1, at, f.ld, j);
        if (!factor_diagonal(at, f.ld, inverse)) return false;
        subtract_product_and_solve(panel + j + TILE, f.ld, panel + j, at + TILE, rows - j - TILE, j, at, inverse);
    }
    for (i64 j = 0; j < f.padded_below; j += TILE) {
        const T* left = panel + f.padded + j;
        subtract_product<true>(left, f.ld, left, f.ld, 1, update + j * f.update_ld + j, f.update_ld,
                               f.padded_below - j, f.width);
    }
    return true;
}

template <class T>
bool factor_one(const T* A, const T* shift, T* F, T* U, T* room, i64 count, const Front* fronts, const i64* entry_start,
                const Entry* entries, const i64* child_start, const i64* children, const i64* run_start,
                const Run* runs, const i64* scalar) {
    for (i64 s = 0; s < count; s++) {
        const Front f = fronts[s];
        T* panel = F + f.panel;
        T* update = U + f.update;
        std::memset(panel, 0, sizeof(T) * f.ld * f.padded);
        for (i64 e = entry_start[s]; e < entry_start[s + 1]; e++) {
            const Entry& a = entries[e];
            if (e + AHEAD < entry_start[count]) prefetch(A, entries[e + AHEAD]);
            for (i64 j = 0; j < a.width; j++) {
                T* to = F + a.target + j * f.ld;
                const T* from = A + a.source + j * a.by_column;
                for (i64 i = 0; i < a.height; i++) to[i] = from[i * a.by_row];
            }
        }
        if (shift)
            for (i64 j = 0; j < f.width; j++) panel[j * f.ld + j] += shift[scalar[f.first + j]];
        for (i64 j = f.width; j < f.padded; j++) panel[j * f.ld + j] = 1;
        const auto assemble_children = [&](auto panel) {
            for (i64 k = child_start[s]; k < child_start[s + 1]; k++) {
                const i64 c = children[k];
                assemble<panel>(f, fronts[c], runs + run_start[c], run_start[c + 1] - run_start[c], F, U);
            }
        };
        assemble_children(std::true_type());
        if (is_large(f)) {
            if (!factor_large(panel, f.ld, f.padded, f.width, f.padded_below, update, f.update_ld, room)) return false;
        } else {
            if (!factor_small(panel, f, update)) return false;
        }
        assemble_children(std::false_type());
    }
    return true;
}

template <class T>
void factor(const T* values, i64 num_values, const T* shift, i64 num_unknowns, T* L, i64 factor_size, bool* ok,
            i64 begin, i64 end, i64 stack, i64 count, const i64* fronts, const i64* entry_start, const i64* entries,
            const i64* child_start, const i64* children, const i64* run_start, const i64* runs, const i64* scalar) {
    Numbers<T> own;
    const Front* table = reinterpret_cast<const Front*>(fronts);
    const i64 beside = padded(stack);
    T* U = room_for(beside + room_of_large<T>(count, table), own);
    const FlushToZero flush;
    for (i64 b = begin; b < end; b++)
        ok[b] = factor_one(values + b * num_values, num_unknowns ? shift + b * num_unknowns : nullptr,
                           L + b * factor_size, U, U + beside, count, table, entry_start,
                           reinterpret_cast<const Entry*>(entries), child_start, children, run_start,
                           reinterpret_cast<const Run*>(runs), scalar);
}

// L L^T x = b for K right-hand sides, eight columns of L at a time: the factor is read once for all, which takes all the
// time. x is (K, places), in the padded elimination order; t is (K, tallest), as tall as the tallest front. Each is
// computed as if it were alone. HALF is L y = b, y in the place of x.
template <int K, bool HALF, class T>
void solve_few(const T* F, T* x, i64 places, T* t, i64 tallest, i64 count, const Front* fronts, const i64* row_start,
               const i32* rows) {
    for (i64 s = 0; s < count; s++) {
        const Front f = fronts[s];
        const i64 height = f.padded + f.padded_below;
        for (int k = 0; k < K; k++) {
            std::memcpy(t + k * tallest, x + k * places + f.first, sizeof(T) * f.padded);
            std::memset(t + k * tallest + f.padded, 0, sizeof(T) * f.padded_below);
        }
        for (i64 j = 0; j < f.padded; j += TILE) {
            const T* at = F + f.panel + j * f.ld + j;
            for (int k = 0; k < K; k++) {
                T* own = t + k * tallest + j;
                solve_diagonal(at, f.ld, own);
                subtract_eight_columns(at + TILE, f.ld, own, own + TILE, height - j - TILE);
            }
        }
        const i32* row = rows + row_start[s];
        for (int k = 0; k < K; k++) {
            T* own = x + k * places;
            std::memcpy(own + f.first, t + k * tallest, sizeof(T) * f.padded);
            for (i64 i = 0; i < f.below; i++) own[row[i]] += t[k * tallest + f.padded + i];
        }
    }
    if constexpr (HALF) return;
    for (i64 s = count - 1; s >= 0; s--) {
        const Front f = fronts[s];
        const i32* row = rows + row_start[s];
        for (int k = 0; k < K; k++) {
            const T* own = x + k * places;
            std::memcpy(t + k * tallest, own + f.first, sizeof(T) * f.padded);
            for (i64 i = 0; i < f.padded_below; i++) t[k * tallest + f.padded + i] = own[row[i]];
        }
        for (i64 j = f.padded - TILE; j >= 0; j -= TILE) {
            const T* at = F + f.panel + j * f.ld + j;
            for (int k = 0; k < K; k++) {
                T* own = t + k * tallest + j;
                subtract_eight_dots(at + TILE, f.ld, own + TILE, own, f.padded + f.padded_below - j - TILE);
                solve_diagonal_transposed(at, f.ld, own);
            }
        }
        for (int k = 0; k < K; k++)
            std::memcpy(x + k * places + f.first, t + k * tallest, sizeof(T) * f.padded);
    }
}

// The same for eight right-hand sides, x (padded order, 8).
template <class T>
void solve_eight(const T* F, T* x, T* t, i64 count, const Front* fronts, const i64* row_start, const i32* rows) {
    for (i64 s = 0; s < count; s++) {
        const Front f = fronts[s];
        T* own = x + f.first * TILE;
        for (i64 j = 0; j < f.width; j++) {
            const T* column = F + f.panel + j * f.ld;
            const vec<T> value = load(own + j * TILE) * column[j];
            store(own + j * TILE, value);
            for (i64 i = j + 1; i < f.width; i++) store(own + i * TILE, load(own + i * TILE) - value * column[i]);
        }
        std::memset(t, 0, sizeof(T) * f.padded_below * TILE);
        subtract_product(F + f.panel + f.padded, f.ld, own, TILE, 1, t, f.padded_below, f.padded_below, f.width);
        const i32* row = rows + row_start[s];
        for (i64 i = 0; i < f.below; i++)
            for (int k = 0; k < TILE; k++) x[row[i] * i64{TILE} + k] += t[k * f.padded_below + i];
    }
    for (i64 s = count - 1; s >= 0; s--) {
        const Front f = fronts[s];
        T* own = x + f.first * TILE;
        const i32* row = rows + row_start[s];
        for (i64 i = 0; i < f.below; i++) store(t + i * TILE, load(x + row[i] * i64{TILE}));
        for (i64 j = 0; j < f.padded; j += TILE)
            subtract_eight_rows(t, TILE, F + f.panel + f.padded + j * f.ld, 1, f.ld, own + j * TILE, TILE, f.below);
        for (i64 j = f.width - 1; j >= 0; j--) {
            const T* column = F + f.panel + j * f.ld;
            vec<T> value = load(own + j * TILE);
            for (i64 i = j + 1; i < f.width; i++) value = value - load(own + i * TILE) * column[i];
            store(own + j * TILE, value * column[j]);
        }
    }
}

template <class T>
void solve(const T* L, i64 factor_size, const bool* ok, const T* rhs, T* out, i64 begin, i64 end, i64 unknowns,
           i64 columns, i64 tallest, i64 count, const i64* fronts, const i64* row_start, const i32* rows,
           const i64* scalar, i64 places, i64 half) {
    const Front* table = reinterpret_cast<const Front*>(fronts);
    const FlushToZero flush;
    const i64 lanes = columns < 3 || half ? (columns < 2 ? 1 : 2) : TILE;
    const Numbers<T> x = numbers<T>(places * lanes), t = numbers<T>(tallest * lanes);
    std::memset(x.get(), 0, sizeof(T) * places * lanes);
    // Of few right-hand sides each has its numbers side by side, of eight each place has.
    const i64 by_place = lanes == TILE ? TILE : 1, by_lane = lanes == TILE ? 1 : places;
    const auto solve_few_of = [&](auto few, const T* F) {
        constexpr int K = decltype(few)::value;
        const auto run = half ? solve_few<K, true, T> : solve_few<K, false, T>;
        run(F, x.get(), places, t.get(), tallest, count, table, row_start, rows);
    };
    for (i64 b = begin; b < end; b++) {
        const T* right = rhs + b * unknowns * columns;
        T* left = out + b * unknowns * columns;
        if (!ok[b]) {
            for (i64 i = 0; i < unknowns * columns; i++) left[i] = std::numeric_limits<T>::quiet_NaN();
            continue;
        }
        for (i64 c = 0; c < columns; c += lanes) {
            const i64 have = lanes < columns - c ? lanes : columns - c;
            for (i64 i = 0; i < places; i++)
                for (i64 k = 0; k < have; k++)
                    x[i * by_place + k * by_lane] = scalar[i] >= 0 ? right[scalar[i] * columns + c + k] : 0;
            if (lanes == 1)
                solve_few_of(std::integral_constant<int, 1>(), L + b * factor_size);
            else if (lanes == 2)
                solve_few_of(std::integral_constant<int, 2>(), L + b * factor_size);
            else
                solve_eight(L + b * factor_size, x.get(), t.get(), count, table, row_start, rows);
            for (i64 i = 0; i < places; i++)
                if (scalar[i] >= 0)
                    for (i64 k = 0; k < have; k++) left[scalar[i] * columns + c + k] = x[i * by_place + k * by_lane];
        }
    }
}

}  // namespace

#define MSLSQ_DEFINE(T, type)                                                                                          \
    MSLSQ_EXPORT(multifrontal_factor, type)                                                                            \
    (const T* values, i64 num_values, const T* shift, i64 num_unknowns, T* L, i64 factor_size, bool* ok, i64 begin,    \
     i64 end, i64 stack, i64 count, const i64* fronts, const i64* entry_start, const i64* entries,                     \
     const i64* child_start, const i64* children, const i64* run_start, const i64* runs, const i64* scalar) {          \
        factor<T>(values, num_values, shift, num_unknowns, L, factor_size, ok, begin, end, stack, count, fronts,       \
                  entry_start, entries, child_start, children, run_start, runs, scalar);                               \
    }                                                                                                                  \
    MSLSQ_EXPORT(multifrontal_solve, type)                                                                             \
    (const T* L, i64 factor_size, const bool* ok, const T* rhs, T* out, i64 begin, i64 end, i64 unknowns, i64 columns, \
     i64 tallest, i64 count, const i64* fronts, const i64* row_start, const i32* rows, const i64* scalar,              \
     i64 places, i64 half) {                                                                                           \
        solve<T>(L, factor_size, ok, rhs, out, begin, end, unknowns, columns, tallest, count, fronts, row_start, rows, \
                 scalar, places, half);                                                                                \
    }

MSLSQ_DEFINE(double, f64)
MSLSQ_DEFINE(float, f32)

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
