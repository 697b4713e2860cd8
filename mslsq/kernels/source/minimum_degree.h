// Approximate minimum degree: a fill-reducing elimination order of a graph whose vertices carry sizes.
//
// The quotient graph of Amestoy, Davis and Duff (1996): an eliminated vertex becomes an element, the clique of its
// neighbours kept as one list. Vertices with equal adjacency merge into supervariables, elements swallowed by a newer one
// are absorbed, and degrees are the paper's upper bound |Lp \ i| + |Ai \ i| + sum |Le \ Lp|. Degrees count scalars, not
// blocks, so cameras of 9 and points of 3 compete fairly.

#pragma once

#include <algorithm>
#include <vector>

#include "vectors.h"

namespace mslsq {
namespace MSLSQ_TARGET {

// Vertices by degree, in doubly linked lists; of one degree the one that has waited longest comes first, which spreads
// the elimination over the graph (as multiple elimination does): a quarter less fill in grids than last in, first out.
class Degrees {
  public:
    Degrees(i64 vertices, i64 largest)
        : head_(largest + 1, -1), tail_(largest + 1, -1), next_(vertices, -1), previous_(vertices, -1) {}

    void insert(i32 i, i64 degree) {
        previous_[i] = tail_[degree];
        next_[i] = -1;
        (tail_[degree] >= 0 ? next_[tail_[degree]] : head_[degree]) = i;
        tail_[degree] = i;
        lowest_ = std::min(lowest_, degree);
    }

    void remove(i32 i, i64 degree) {
        (previous_[i] >= 0 ? next_[previous_[i]] : head_[degree]) = next_[i];
        (next_[i] >= 0 ? previous_[next_[i]] : tail_[degree]) = previous_[i];
    }

    i32 pop_lowest() {
        while (head_[lowest_] < 0) lowest_++;
        const i32 i = head_[lowest_];
        remove(i, lowest_);
        return i;
    }

  private:
    std::vector<i32> head_, tail_, next_, previous_;
    i64 lowest_ = 0;
};

// Vertices whose degree exceeds 10 sqrt(N) come last: they would be in every list and make the work quadratic.
inline void minimum_degree(i64 n, const i64* sizes, const i64* start, const i32* neighbour, i32* order) {
    i64 total = 0;
    for (i64 i = 0; i < n; i++) total += sizes[i];
    std::vector<i32> lists(neighbour, neighbour + start[n]);  // of vertices and elements, one after the other
    lists.reserve(2 * lists.size() + n);
    std::vector<i64> begin(start, start + n), length(n), degree(n), weight(sizes, sizes + n);
    // weight: scalars of a live supervariable; 0: gone; negative: in the current pivot's list
    std::vector<i64> elements(n, 0);  // how many of a vertex' list entries are elements; they come first
    std::vector<char> is_element(n, 0);
    std::vector<i64> stamp(n, 0), outside(n, 0);  // |Le \ Lp| of the elements stamped in this step
    std::vector<i32> bucket(n, -1), bucket_next(n, -1);
    std::vector<i64> hashed(n, 0);
    std::vector<i32> member_next(n, -1), member_last(n);  // the vertices merged into a supervariable, behind its name
    const double limit = std::max(64.0, 10.0 * std::sqrt(double(total)));
    i64 ordered = 0, dense = 0, left = total, clock = 0;
    Degrees degrees(n, total);
    for (i32 i = 0; i < n; i++) {
        member_last[i] = i;
        length[i] = start[i + 1] - start[i];
        i64 d = 0;
        for (i64 k = start[i]; k < start[i + 1]; k++) d += sizes[neighbour[k]];
        degree[i] = d;
        if (d > limit && n > 64) {
            dense++;
            weight[i] = 0;
            left -= sizes[i];
            order[n - dense] = i;
        } else {
            degrees.insert(i, d);
        }
    }
    while (ordered < n - dense) {
        const i32 p = degrees.pop_lowest();
        clock++;
        // the pivot's clique: its own neighbours and those of its elements, which it absorbs
        i64 pivot_weight = weight[p];
        weight[p] = -pivot_weight;
        const i64 first = lists.size();
        i64 clique = 0;
        for (i64 k = begin[p]; k < begin[p] + length[p]; k++) {
            const i32 e = lists[k];
            i64 a = k, b = k + 1;
            if (k < begin[p] + elements[p]) {
                if (!is_element[e]) continue;
                a = begin[e];
                b = a + length[e];
                is_element[e] = 0;
            }
            for (i64 q = a; q < b; q++) {
                const i32 i = lists[q];
                if (weight[i] > 0) {
                    clique += weight[i];
                    weight[i] = -weight[i];
                    lists.push_back(i);
                    degrees.remove(i, degree[i]);
                }
            }
        }
        const i64 last = lists.size();
        begin[p] = first;
        length[p] = last - first;
        is_element[p] = 1;
        // |Le \ Lp| of every element that touches the clique
        for (i64 k = first; k < last; k++) {
            const i32 i = lists[k];
            for (i64 q = begin[i]; q < begin[i] + elements[i]; q++) {
                const i32 e = lists[q];
                if (!is_element[e]) continue;
                if (stamp[e] != clock) {
                    stamp[e] = clock;
                    outside[e] = degree[e];
                }
                outside[e] += weight[i];  // weight is negative here
            }
        }
        for (i64 k = first; k < last; k++) {
            const i32 i = lists[k];
            const i64 a = begin[i];
            i64 write = a, d = 0, code = 0;
            for (i64 q = a; q < a + elements[i]; q++) {
                const i32 e = lists[q];
                if (!is_element[e] || e == p) continue;
                if (outside[e] > 0) {
                    d += outside[e];
                    lists[write++] = e;
                    code += e;
                } else {
                    is_element[e] = 0;  // inside the new one: absorbed
                }
            }
            const i64 kept = write - a, variables = write;
            for (i64 q = a + elements[i]; q < a + length[i]; q++) {
                const i32 j = lists[q];
                if (weight[j] > 0) {
                    d += weight[j];
                    lists[write++] = j;
                    code += j;
                }
            }
            if (d == 0) {  // adjacent to nothing but the pivot's clique: eliminated with it, no further fill
                clique += weight[i];
                pivot_weight -= weight[i];
                weight[i] = 0;
                member_next[member_last[p]] = i;
                member_last[p] = member_last[i];
                continue;
            }
            degree[i] = std::min(degree[i], d);
            // the new element takes the first place, the first variable moves to the end: p, or an element that it
            // absorbed, has left room
            lists[write] = lists[variables];
            lists[variables] = lists[a];
            lists[a] = p;
            elements[i] = kept + 1;
            length[i] = write + 1 - a;
            const i64 slot = code % n;
            hashed[i] = code;
            bucket_next[i] = bucket[slot];
            bucket[slot] = i;
        }
        // vertices of equal lists are one from now on
        for (i64 k = first; k < last; k++) {
            if (weight[lists[k]] == 0) continue;
            const i64 slot = hashed[lists[k]] % n;
            i32 i = bucket[slot];
            bucket[slot] = -1;
            for (; i >= 0 && bucket_next[i] >= 0; i = bucket_next[i]) {
                clock++;
                for (i64 q = begin[i] + 1; q < begin[i] + length[i]; q++) stamp[lists[q]] = clock;
                i32 previous = i, j = bucket_next[i];
                while (j >= 0) {
                    bool same = hashed[j] == hashed[i] && length[j] == length[i] && elements[j] == elements[i];
                    for (i64 q = begin[j] + 1; same && q < begin[j] + length[j]; q++) same = stamp[lists[q]] == clock;
                    if (same) {
                        weight[i] += weight[j];
                        weight[j] = 0;
                        member_next[member_last[i]] = j;
                        member_last[i] = member_last[j];
                        j = bucket_next[j];
                        bucket_next[previous] = j;
                    } else {
                        previous = j;
                        j = bucket_next[j];
                    }
                }
            }
        }
        left -= pivot_weight;
        weight[p] = 0;
        i64 write = first;
        for (i64 k = first; k < last; k++) {
            const i32 i = lists[k];
            if (weight[i] == 0) continue;
            weight[i] = -weight[i];
            degree[i] = std::min(degree[i] + clique - weight[i], left - weight[i]);
            degrees.insert(i, degree[i]);
            lists[write++] = i;
        }
        length[p] = write - first;
        lists.resize(write);
        degree[p] = clique;
        if (clique == 0) is_element[p] = 0;
        for (i32 i = p; i >= 0; i = member_next[i]) order[ordered++] = i;
    }
}

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
