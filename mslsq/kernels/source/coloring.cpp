// Greedy colouring of a graph; mslsq/linearize/compressed/coloring.py says what for.

#include <algorithm>
#include <vector>

#include "export.h"
#include "vectors.h"

namespace mslsq {
namespace MSLSQ_TARGET {

// The smallest colour that no neighbour has, vertex by vertex in this order.
MSLSQ_EXPORT(greedy_coloring, any)
(i64 n, const i64* start, const i64* neighbour, const i64* order, i64* colors) {
    std::fill_n(colors, n, -1);
    std::vector<i64> taken(n + 1, -1);
    for (i64 k = 0; k < n; k++) {
        const i64 vertex = order[k];
        for (i64 e = start[vertex]; e < start[vertex + 1]; e++) {
            const i64 color = colors[neighbour[e]];
            if (color >= 0) taken[color] = vertex;
        }
        i64 color = 0;
        while (taken[color] == vertex) color++;
        colors[vertex] = color;
    }
}

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
