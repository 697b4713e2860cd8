"""Approximate minimum degree: a fill-reducing elimination order of a graph whose vertices carry sizes.

The quotient graph of Amestoy, Davis and Duff (1996): an eliminated vertex becomes an *element*, the clique of its
neighbours kept as one list. Vertices with equal adjacency merge into supervariables, elements swallowed by a newer one
are absorbed, and degrees are the paper's upper bound |Lp \\ i| + |Ai \\ i| + sum |Le \\ Lp|. Degrees count scalars, not
blocks, so cameras of 9 and points of 3 compete fairly.
"""

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def minimum_degree(sizes, start, neighbour):
    """The elimination order (n,) of the symmetric graph in compressed rows (no self loops).

    Vertices whose degree exceeds 10 sqrt(N) come last: they would be in every list and make the work quadratic.
    """
    n = sizes.size
    total = 0
    for i in range(n):
        total += sizes[i]
    lists = np.empty(max(2 * neighbour.size, 16) + n, np.int32)
    used = neighbour.size
    lists[:used] = neighbour
    begin = start[:n].copy()
    length = np.empty(n, np.int64)
    elements = np.zeros(n, np.int64)  # how many of a vertex' list entries are elements; they come first
    weight = np.empty(n, np.int64)  # scalars of a live supervariable; 0: gone; negative: in the current pivot's list
    degree = np.empty(n, np.int64)
    is_element = np.zeros(n, np.bool_)  # a live element
    stamp = np.zeros(n, np.int64)
    outside = np.zeros(n, np.int64)  # |Le \ Lp| of the elements stamped in this step
    head = np.full(total + 1, -1, np.int32)
    following = np.full(n, -1, np.int32)
    preceding = np.full(n, -1, np.int32)
    bucket = np.full(n, -1, np.int32)
    bucket_next = np.full(n, -1, np.int32)
    hashed = np.zeros(n, np.int64)
    member_next = np.full(n, -1, np.int32)  # the vertices merged into a supervariable, a list behind its name
    member_last = np.arange(n).astype(np.int32)
    order = np.empty(n, np.int32)
    ordered = 0
    limit = max(64.0, 10.0 * np.sqrt(total))
    dense = 0
    left = total
    for i in range(n):
        length[i] = start[i + 1] - start[i]
        weight[i] = sizes[i]
        d = 0
        for k in range(start[i], start[i + 1]):
            d += sizes[neighbour[k]]
        degree[i] = d
    for i in range(n):
        if degree[i] > limit and n > 64:
            dense += 1
            weight[i] = 0
            left -= sizes[i]
            order[n - dense] = i
    for i in range(n):
        if weight[i] > 0:
            following[i] = head[degree[i]]
            if following[i] >= 0:
                preceding[following[i]] = i
            head[degree[i]] = i
    lowest = 0
    clock = 0
    while ordered < n - dense:
        while head[lowest] < 0:
            lowest += 1
        p = head[lowest]
        head[lowest] = following[p]
        if following[p] >= 0:
            preceding[following[p]] = -1
        clock += 1
        # the pivot's clique: its own neighbours and those of its elements, which it absorbs
        bound = length[p] - elements[p]
        for k in range(begin[p], begin[p] + elements[p]):
            bound += length[lists[k]]
        if used + bound > lists.size:
            larger = np.empty(2 * lists.size + bound, np.int32)
            larger[:used] = lists[:used]
            lists = larger
        pivot_weight = weight[p]
        weight[p] = -pivot_weight
        first = used
        clique = 0
        for k in range(begin[p], begin[p] + length[p]):
            e = lists[k]
            if k < begin[p] + elements[p]:
                if not is_element[e]:
                    continue
                a, b = begin[e], begin[e] + length[e]
                is_element[e] = False
            else:
                a, b = k, k + 1
            for q in range(a, b):
                i = lists[q]
                if weight[i] > 0:
                    clique += weight[i]
                    weight[i] = -weight[i]
                    lists[used] = i
                    used += 1
                    if preceding[i] >= 0:
                        following[preceding[i]] = following[i]
                    else:
                        head[degree[i]] = following[i]
                    if following[i] >= 0:
                        preceding[following[i]] = preceding[i]
        last = used
        begin[p] = first
        length[p] = last - first
        is_element[p] = True
        # |Le \ Lp| of every element that touches the clique
        for k in range(first, last):
            i = lists[k]
            for q in range(begin[i], begin[i] + elements[i]):
                e = lists[q]
                if is_element[e]:
                    if stamp[e] != clock:
                        stamp[e] = clock
                        outside[e] = degree[e]
                    outside[e] += weight[i]  # weight is negative here
        for k in range(first, last):
            i = lists[k]
            a = begin[i]
            write = a
            d = 0
            code = 0
            for q in range(a, a + elements[i]):
                e = lists[q]
                if is_element[e] and e != p:
                    if outside[e] > 0:
                        d += outside[e]
                        lists[write] = e
                        write += 1
                        code += e
                    else:
                        is_element[e] = False  # inside the new one: absorbed
            kept = write - a
            variables = write
            for q in range(a + elements[i], a + length[i]):
                j = lists[q]
                if weight[j] > 0:
                    d += weight[j]
                    lists[write] = j
                    write += 1
                    code += j
            if d == 0:  # adjacent to nothing but the pivot's clique: eliminated with it, no further fill
                clique += weight[i]
                pivot_weight -= weight[i]
                weight[i] = 0
                member_next[member_last[p]] = i
                member_last[p] = member_last[i]
                continue
            degree[i] = min(degree[i], d)
            # the new element takes the first place, the first variable moves to the end: p, or an element that it
            # absorbed, has left room
            lists[write] = lists[variables]
            lists[variables] = lists[a]
            lists[a] = p
            elements[i] = kept + 1
            length[i] = write + 1 - a
            slot = code % n
            hashed[i] = code
            bucket_next[i] = bucket[slot]
            bucket[slot] = i
        # vertices of equal lists are one from now on
        for k in range(first, last):
            i = lists[k]
            if weight[i] == 0:
                continue
            slot = hashed[i] % n
            i = bucket[slot]
            bucket[slot] = -1
            while i >= 0 and bucket_next[i] >= 0:
                clock += 1
                for q in range(begin[i] + 1, begin[i] + length[i]):
                    stamp[lists[q]] = clock
                previous = i
                j = bucket_next[i]
                while j >= 0:
                    same = hashed[j] == hashed[i] and length[j] == length[i] and elements[j] == elements[i]
                    if same:
                        for q in range(begin[j] + 1, begin[j] + length[j]):
                            if stamp[lists[q]] != clock:
                                same = False
                                break
                    if same:
                        weight[i] += weight[j]
                        weight[j] = 0
                        member_next[member_last[i]] = j
                        member_last[i] = member_last[j]
                        j = bucket_next[j]
                        bucket_next[previous] = j
                    else:
                        previous = j
                        j = bucket_next[j]
                i = bucket_next[i]
        left -= pivot_weight
        weight[p] = 0
        write = first
        for k in range(first, last):
            i = lists[k]
            if weight[i] == 0:
                continue
            weight[i] = -weight[i]
            d = min(degree[i] + clique - weight[i], left - weight[i])
            degree[i] = d
            preceding[i] = -1
            following[i] = head[d]
            if following[i] >= 0:
                preceding[following[i]] = i
            head[d] = i
            if d < lowest:
                lowest = d
            lists[write] = i
            write += 1
        length[p] = write - first
        used = write
        degree[p] = clique
        if clique == 0:
            is_element[p] = False
        i = p
        while i >= 0:
            order[ordered] = i
            ordered += 1
            i = member_next[i]
    return order
