// Symbolic Cholesky on blocks: elimination tree, postorder, column counts, supernodes, structures, stacks.
//
// Row subtrees of the elimination tree give exact column counts; neighbouring columns of equal structure are fundamental
// supernodes; a child is merged into its parent where the model of the front's time says that one front is cheaper than
// two. Called by mslsq/linear/sparse/elimination.py.

#include "elimination_tree.h"
#include "export.h"

namespace mslsq {
namespace MSLSQ_TARGET {
namespace {

// Nanoseconds of a front of `width` columns and `below` rows under them, by five costs (fitted on one Zen 5 core).
double front_nanoseconds(i64 width, i64 below, const double* model) {
    const double w = padded(width), r = padded(below);
    const double arithmetic = w * w * w / 3 + w * w * r + width * r * r;
    return model[0] + model[1] * w + model[2] * arithmetic + model[3] * w * (w + r) + model[4] * r * r;
}

}  // namespace

MSLSQ_EXPORT(elimination_tree, any)
(i64 n, const i32* order, const i64* start, const i32* neighbour, i32* parent) {
    elimination_tree(n, order, start, neighbour, parent);
}

// A postorder of the forest: position -> node.
MSLSQ_EXPORT(postorder, any)(i64 n, const i32* parent, i32* order) {
    Children children(n);
    for (i32 i = n - 1; i >= 0; i--)
        if (parent[i] >= 0) children.add(i, parent[i]);
    std::vector<i32> stack;
    i64 k = 0;
    for (i32 root = 0; root < n; root++) {
        if (parent[root] >= 0) continue;
        stack.push_back(root);
        while (!stack.empty()) {
            const i32 i = stack.back(), child = children.head[i];
            if (child >= 0) {
                stack.push_back(child);
                children.head[i] = children.sibling[child];
            } else {
                order[k++] = i;
                stack.pop_back();
            }
        }
    }
}

MSLSQ_EXPORT(column_counts, any)
(i64 n, const i64* sizes, const i32* order, const i32* parent, const i64* start, const i32* neighbour, i64* blocks,
 i64* scalars) {
    column_counts(n, sizes, order, parent, start, neighbour, blocks, scalars);
}

// Row blocks below the diagonal, ascending, of the wanted columns; `at` is where each column's rows begin.
MSLSQ_EXPORT(column_structures, any)
(i64 n, const i32* order, const i32* parent, const bool* wanted, const i64* begin, const i64* start,
 const i32* neighbour, i32* rows) {
    std::vector<i64> at(begin, begin + n);
    for_each_entry(n, order, parent, start, neighbour, [&](i32 i, i32 k) {
        if (wanted[k]) rows[at[k]++] = i;
    });
}

// The supernode of every column, and (in a postorder) the topmost columns and the parents: first equal columns are
// merged, then children into parents where that is cheaper. How many there are goes to `survivors`.
MSLSQ_EXPORT(supernodes, any)
(i64 n, const i64* sizes, const i32* order, const i32* parent, const i64* blocks, const i64* scalars,
 const double* model, i32* of, i32* tops, i32* parents, i64* survivors) {
    i32 count = 0;
    for (i64 j = 0; j < n; j++)
        of[j] = j > 0 && parent[j - 1] == j && blocks[j - 1] == blocks[j] + 1 ? count - 1 : count++;
    std::vector<i64> width(count, 0);
    std::vector<i32> last(count, 0), into(count, -1), up(count, -1);
    for (i64 j = 0; j < n; j++) {
        width[of[j]] += sizes[order[j]];
        last[of[j]] = j;
    }
    Children children(count);
    for (i32 s = 0; s < count; s++) {
        const i64 below = scalars[last[s]];
        for (;;) {  // the child that saves most first
            i32 best = -1, best_before = -1, before = -1;
            double best_gain = 0;
            for (i32 c = children.head[s]; c >= 0; before = c, c = children.sibling[c]) {
                const double gain = front_nanoseconds(width[c], scalars[last[c]], model) +
                                    front_nanoseconds(width[s], below, model) -
                                    front_nanoseconds(width[c] + width[s], below, model);
                if (gain > best_gain) best = c, best_gain = gain, best_before = before;
            }
            if (best < 0) break;
            into[best] = s;
            width[s] += width[best];
            (best_before >= 0 ? children.sibling[best_before] : children.head[s]) = children.sibling[best];
        }
        const i32 p = parent[last[s]];
        if (p >= 0) {
            up[s] = of[p];
            children.add(s, of[p]);
        }
    }
    for (i32 s = count - 1; s >= 0; s--)  // merged into the topmost
        if (into[s] >= 0 && into[into[s]] >= 0) into[s] = into[into[s]];
    std::vector<i32> number(count, -1);
    i32 remaining = 0;
    for (i32 s = 0; s < count; s++)
        if (into[s] < 0) number[s] = remaining++;
    const auto survivor = [&](i32 s) { return number[into[s] >= 0 ? into[s] : s]; };
    for (i32 s = 0; s < count; s++)
        if (into[s] < 0) {
            tops[number[s]] = last[s];
            parents[number[s]] = up[s] >= 0 ? survivor(up[s]) : -1;
        }
    for (i64 j = 0; j < n; j++) of[j] = survivor(of[j]);
    *survivors = remaining;
}

// Where the update matrices lie, on two stacks one behind the other, and (`room`) the room for both.
//
// Fronts of even depth push onto one, fronts of odd depth onto the other: a front's children lie on top of one stack
// while its own update matrix goes onto the other, and nothing is ever moved.
MSLSQ_EXPORT(update_stacks, any)(i64 count, const i64* up, const i64* needs, i64* place, i64* room) {
    std::vector<char> odd(count, 0);
    for (i64 k = count - 1; k >= 0; k--)
        if (up[k] >= 0) odd[k] = !odd[up[k]];
    std::vector<i64> first_child(count, -1);
    i64 top[2] = {0, 0}, peak[2] = {0, 0};
    for (i64 k = 0; k < count; k++) {
        const int own = odd[k];
        place[k] = top[own];
        top[own] += needs[k];
        peak[own] = std::max(peak[own], top[own]);
        if (first_child[k] >= 0) top[1 - own] = place[first_child[k]];
        if (up[k] >= 0 && first_child[up[k]] < 0) first_child[up[k]] = k;
    }
    for (i64 k = 0; k < count; k++)
        if (odd[k]) place[k] += peak[0];
    *room = peak[0] + peak[1];
}

// `front_nanoseconds` of many fronts, summed up.
MSLSQ_EXPORT(fronts_nanoseconds, any)
(i64 count, const i64* width, const i64* below, const double* model, double* total) {
    *total = 0;
    for (i64 k = 0; k < count; k++) *total += front_nanoseconds(width[k], below[k], model);
}

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
