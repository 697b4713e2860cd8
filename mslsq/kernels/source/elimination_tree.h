// Elimination trees: what a symmetric graph becomes when its vertices are eliminated in some order.
//
// J. W. H. Liu, "The role of elimination trees in sparse factorization", SIAM J. Matrix Anal. 11 (1990). Graphs are in
// compressed rows (start, neighbour) without loops; trees number their nodes by elimination.
#pragma once

#include <algorithm>
#include <vector>

#include "vectors.h"

namespace mslsq {
namespace MSLSQ_TARGET {

inline std::vector<i32> inverse(i64 n, const i32* order) {
    std::vector<i32> place(n);
    for (i64 k = 0; k < n; k++) place[order[k]] = k;
    return place;
}

// The children of every node of a forest, in lists: the last added comes first.
struct Children {
    std::vector<i32> head, sibling;

    explicit Children(i64 n) : head(n, -1), sibling(n, -1) {}

    void add(i32 child, i32 parent) {
        sibling[child] = head[parent];
        head[parent] = child;
    }
};

// The parent of every node, by paths compressed to the ancestor; -1 of a root.
inline void elimination_tree(i64 n, const i32* order, const i64* start, const i32* neighbour, i32* parent) {
    const std::vector<i32> place = inverse(n, order);
    std::vector<i32> ancestor(n, -1);
    for (i32 i = 0; i < n; i++) {
        parent[i] = -1;
        for (i64 e = start[order[i]]; e < start[order[i] + 1]; e++) {
            i32 k = place[neighbour[e]];
            while (k != -1 && k < i) {
                const i32 following = ancestor[k];
                ancestor[k] = i;
                if (following == -1) parent[k] = i;
                k = following;
            }
        }
    }
}

// visit(i, k) for every entry, k < i, of the factor, row by row: each row walks its subtree once.
template <class Visit>
inline void for_each_entry(i64 n, const i32* order, const i32* parent, const i64* start, const i32* neighbour,
                           Visit visit) {
    const std::vector<i32> place = inverse(n, order);
    std::vector<i32> mark(n, -1);
    for (i32 i = 0; i < n; i++) {
        mark[i] = i;
        for (i64 e = start[order[i]]; e < start[order[i] + 1]; e++)
            for (i32 k = place[neighbour[e]]; k < i && mark[k] != i; k = parent[k]) {
                mark[k] = i;
                visit(i, k);
            }
    }
}

// Blocks and scalars below the diagonal of every column of the factor.
inline void column_counts(i64 n, const i64* sizes, const i32* order, const i32* parent, const i64* start,
                          const i32* neighbour, i64* blocks, i64* scalars) {
    std::fill_n(blocks, n, 0);
    std::fill_n(scalars, n, 0);
    for_each_entry(n, order, parent, start, neighbour, [&](i32 i, i32 k) {
        blocks[k]++;
        scalars[k] += sizes[order[i]];
    });
}

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
