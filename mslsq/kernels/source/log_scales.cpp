// Log-scales of N maps from the logs of their ratios, cell by cell; mslsq/alignment/scales/cells.py says what for.
//
// Eight cells at a time, one per lane. A cell's system is the Laplacian of the graph of its maps, at most a few dozen
// rows, and stays in the cache through all steps.

#include <algorithm>
#include <vector>

#include "export.h"
#include "vectors.h"

namespace mslsq {
namespace MSLSQ_TARGET {
namespace {

constexpr int LANES = 8;
#define EACH_LANE for (int k = 0; k < LANES; k++)

// What all cells share: the measurements of edge e are start[e] to start[e + 1], of map `second` over map `first`.
struct Graph {
    i64 maps, edges;
    const i64 *first, *second, *start;
};

// Eight cells: rows are `stride` numbers apart.
struct Block {
    const double *logs, *trust, *free;
    i64 stride;
};

// How a residual counts in a step: the bound of L1, else Geman and McClure's loss, the lanes of `newton` by its curvature.
struct Weighting {
    double scale[LANES];
    bool newton[LANES];
    bool absolute;
};

// The linear system of eight cells, and their robust cost in units of scale²/2.
struct System {
    std::vector<double> matrix, right;
    double cost[LANES];

    explicit System(i64 maps) : matrix(maps * maps * LANES), right(maps * LANES) {}
};

inline void weigh(const double* log, const double* trust, const double* difference, const Weighting& how, double* slope,
                  double* curvature, double* pull, double* cost) {
    EACH_LANE {
        const double residual = log[k] + difference[k], t = trust[k] * residual / how.scale[k];
        const double u = 1 / (1 + t * t), squared = trust[k] * trust[k];
        const double a = squared * (how.absolute ? std::sqrt(u) : u * u);
        slope[k] += a;
        curvature[k] += how.newton[k] ? a * (4 * u - 3) : a;
        pull[k] += a * residual;
        cost[k] += 1 - u;
    }
}

// The lower triangle of the Laplacian, the right-hand side -gradient; held maps get a row of the identity and zero.
void assemble(const Graph& graph, const Block& block, const Weighting& how, const double* x, System& system) {
    const i64 n = graph.maps;
    double* A = system.matrix.data();
    double* b = system.right.data();
    std::fill_n(A, n * n * LANES, 0.0);
    std::fill_n(b, n * LANES, 0.0);
    EACH_LANE system.cost[k] = 0;
    for (i64 e = 0; e < graph.edges; e++) {
        const i64 i = graph.first[e], j = graph.second[e];
        double slope[LANES] = {}, curvature[LANES] = {}, pull[LANES] = {}, difference[LANES];
        EACH_LANE difference[k] = x[i * LANES + k] - x[j * LANES + k];
        for (i64 m = graph.start[e]; m < graph.start[e + 1]; m++)
            weigh(block.logs + m * block.stride, block.trust + m * block.stride, difference, how, slope, curvature, pull,
                  system.cost);
        const double *fi = block.free + i * block.stride, *fj = block.free + j * block.stride;
        double *ii = A + (i * n + i) * LANES, *jj = A + (j * n + j) * LANES, *ji = A + (j * n + i) * LANES;
        EACH_LANE {
            ii[k] += fi[k] * curvature[k];
            jj[k] += fj[k] * curvature[k];
            ji[k] -= fi[k] * fj[k] * curvature[k];
            b[i * LANES + k] -= fi[k] * pull[k];
            b[j * LANES + k] += fj[k] * pull[k];
        }
    }
    for (i64 i = 0; i < n; i++) EACH_LANE A[(i * n + i) * LANES + k] += 1 - block.free[i * block.stride + k];
}

// Cholesky in place, and the solution in place of the right-hand side. Lanes that are not positive definite get ok = false.
void solve(i64 n, double* A, double* b, bool* ok) {
    EACH_LANE ok[k] = true;
    for (i64 j = 0; j < n; j++) {
        double* row = A + j * n * LANES;
        double inverse[LANES];
        EACH_LANE {
            double pivot = row[j * LANES + k];
            const double least = 1e-10 * pivot;
            for (i64 c = 0; c < j; c++) pivot -= row[c * LANES + k] * row[c * LANES + k];
            const bool good = pivot > least;
            ok[k] = ok[k] && good;
            inverse[k] = 1 / std::sqrt(good ? pivot : 1.0);
            row[j * LANES + k] = inverse[k];
        }
        for (i64 i = j + 1; i < n; i++) {
            double* other = A + i * n * LANES;
            double sum[LANES];
            EACH_LANE sum[k] = other[j * LANES + k];
            for (i64 c = 0; c < j; c++) EACH_LANE sum[k] -= other[c * LANES + k] * row[c * LANES + k];
            EACH_LANE other[j * LANES + k] = sum[k] * inverse[k];
        }
    }
    for (i64 j = 0; j < n; j++) {
        EACH_LANE b[j * LANES + k] *= A[(j * n + j) * LANES + k];
        for (i64 i = j + 1; i < n; i++) EACH_LANE b[i * LANES + k] -= A[(i * n + j) * LANES + k] * b[j * LANES + k];
    }
    for (i64 j = n - 1; j >= 0; j--) {
        EACH_LANE b[j * LANES + k] *= A[(j * n + j) * LANES + k];
        for (i64 i = 0; i < j; i++) EACH_LANE b[i * LANES + k] -= A[(j * n + i) * LANES + k] * b[j * LANES + k];
    }
}

// x + step where `take`; the longest component of every lane's step.
void move(i64 n, const double* step, const bool* take, double* x, double* longest) {
    EACH_LANE longest[k] = 0;
    for (i64 i = 0; i < n; i++)
        EACH_LANE {
            const double s = take[k] ? step[i * LANES + k] : 0.0;
            x[i * LANES + k] += s;
            longest[k] = std::max(longest[k], std::fabs(s));
        }
}

// What a lane remembers from step to step.
struct Course {
    bool done[LANES] = {}, newton[LANES] = {};
    double cost[LANES] = {};
    i64 steps[LANES] = {}, wait[LANES] = {};
};

// One step of the descent on the loss whose scale is `relaxation` times the lane's own; true when all lanes are done.
bool descend(const Graph& graph, const Block& block, const double* scale, double relaxation, System& system, double* x,
             double* before, Course& course) {
    const i64 n = graph.maps;
    Weighting how{};
    EACH_LANE how.scale[k] = relaxation * scale[k], how.newton[k] = course.newton[k];
    assemble(graph, block, how, x, system);
    bool take[LANES], rose[LANES];
    EACH_LANE rose[k] = course.newton[k] && system.cost[k] > course.cost[k] * (1 + 1e-12);
    for (i64 i = 0; i < n; i++) EACH_LANE {
            double& now = x[i * LANES + k];
            double& old = before[i * LANES + k];
            if (rose[k]) now = old;
            old = now;
        }
    bool ok[LANES];
    solve(n, system.matrix.data(), system.right.data(), ok);
    EACH_LANE take[k] = ok[k] && !rose[k] && !course.done[k];
    double longest[LANES];
    move(n, system.right.data(), take, x, longest);
    bool all = true;
    EACH_LANE {
        if (course.done[k]) continue;
        course.steps[k]++;
        if (!rose[k]) course.cost[k] = system.cost[k];
        if (course.newton[k] && !take[k]) course.wait[k] = 8;
        else if (course.wait[k] > 0) course.wait[k]--;
        const bool last = relaxation == 1.0 && take[k];
        course.done[k] = last && longest[k] <= 1e-9 * scale[k];
        course.newton[k] = last && longest[k] < 0.1 * scale[k] && course.wait[k] == 0;
        all = all && course.done[k];
    }
    return all;
}

}  // namespace

// Blocks of eight cells in [from, to). logs, trust (measurements, cells), free, x (maps, cells), scale, steps (cells):
// x minimises the sum of Geman and McClure's losses; steps is negative where the minimum was not reached.
MSLSQ_EXPORT(log_scales, any)
(i64 maps, i64 edges, i64 cells, i64 from, i64 to, i64 starting, i64 limit, const i64* first, const i64* second,
 const i64* start, const double* logs, const double* trust, const double* free, const double* scale, double* x,
 i64* steps) {
    const Graph graph{maps, edges, first, second, start};
    System system(maps);
    std::vector<double> own(maps * LANES), before(maps * LANES);
    for (i64 c = from * LANES; c < to * LANES; c += LANES) {
        const Block block{logs + c, trust + c, free + c, cells};
        std::fill(own.begin(), own.end(), 0.0);
        Weighting absolute{{}, {}, true};
        EACH_LANE absolute.scale[k] = 1e-2;
        for (i64 step = 0; step < starting; step++) {
            bool ok[LANES];
            double longest[LANES];
            assemble(graph, block, absolute, own.data(), system);
            solve(maps, system.matrix.data(), system.right.data(), ok);
            move(maps, system.right.data(), ok, own.data(), longest);
        }
        Course course;
        double relaxation = 16;
        for (i64 step = 0; step < limit; step++) {
            relaxation = std::max(1.0, 0.7 * relaxation);
            if (descend(graph, block, scale + c, relaxation, system, own.data(), before.data(), course)) break;
        }
        for (i64 i = 0; i < maps; i++) EACH_LANE x[i * cells + c + k] = own[i * LANES + k];
        EACH_LANE steps[c + k] = course.done[k] ? course.steps[k] : -course.steps[k];
    }
}

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
