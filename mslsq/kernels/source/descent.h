// The descent of mslsq/alignment/descent.py, on the few unknowns of one placement: there is said what it does and why. A step
// of it in Python takes ten times as long as the pass over a coarse level.
#pragma once

#include <algorithm>
#include <cmath>

#include "vectors.h"

namespace mslsq {
namespace MSLSQ_TARGET {

constexpr int MOST = 10;  // unknowns: eight of a homography, gain and bias

// As `normal_totals` lays them out, but for the matrix, whose rows are MOST apart here.
struct Equations {
    double samples = 0, cost = 0;
    double gradient[MOST], matrix[MOST][MOST];
};

struct Placement {
    double matrix[9], value[2];
};

// The constants of descent.py, in this order.
struct Limits {
    double first_damping, largest_damping, resolved, smallest_step, largest_step, sufficient, quick, small_step, untried, share;
};

enum Ending : i64 { NON_FINITE, SINGULAR, MAX_STEPS, COST_TOLERANCE, STEP_TOLERANCE, STALLED };

// A step of a model, by its tangent's dimension: `step_matrix` of descent.py.
inline void step_matrix(int tangent, const double* s, double* to) {
    const double grown = tangent == 4 ? std::exp(s[3]) : 1;
    if (tangent == 2) {
        const double all[9] = {1, 0, s[0], 0, 1, s[1], 0, 0, 1};
        std::copy_n(all, 9, to);
    } else if (tangent <= 4) {
        const double c = grown * std::cos(s[2]), n = grown * std::sin(s[2]);
        const double all[9] = {c, -n, s[0], n, c, s[1], 0, 0, 1};
        std::copy_n(all, 9, to);
    } else {
        const double all[9] = {1 + s[3] + s[4], s[5] - s[2], s[0], s[5] + s[2], 1 + s[3] - s[4], s[1],
                               tangent == 8 ? s[6] : 0, tangent == 8 ? s[7] : 0, 1};
        std::copy_n(all, 9, to);
    }
}

inline Placement moved(const Placement& at, int tangent, const double* step) {
    double by[9];
    step_matrix(tangent, step, by);
    Placement there;
    for (int i = 0; i < 3; i++)
        for (int j = 0; j < 3; j++)
            there.matrix[3 * i + j] = at.matrix[3 * i] * by[j] + at.matrix[3 * i + 1] * by[3 + j] + at.matrix[3 * i + 2] * by[6 + j];
    const double last = there.matrix[8];
    for (double& entry : there.matrix) entry /= last;
    for (int k = 0; k < 2; k++) there.value[k] = at.value[k] + step[tangent + k];
    return there;
}

class Descent {
    const int n;
    const bool* free;
    double lacking[MOST][MOST];
    bool corrected = false;

    // A x = b by elimination with pivots; false where there is none.
    bool solved(double (*A)[MOST], double* b) const {
        for (int k = 0; k < n; k++) {
            int pivot = k;
            for (int i = k + 1; i < n; i++)
                if (std::fabs(A[i][k]) > std::fabs(A[pivot][k])) pivot = i;
            if (!(std::fabs(A[pivot][k]) > 0)) return false;
            if (pivot != k) {
                std::swap_ranges(A[k], A[k] + n, A[pivot]);
                std::swap(b[k], b[pivot]);
            }
            for (int i = k + 1; i < n; i++) {
                const double factor = A[i][k] / A[k][k];
                for (int j = k + 1; j < n; j++) A[i][j] -= factor * A[k][j];
                b[i] -= factor * b[k];
            }
        }
        for (int i = n - 1; i >= 0; i--) {
            for (int j = i + 1; j < n; j++) b[i] -= A[i][j] * b[j];
            b[i] /= A[i][i];
        }
        return true;
    }

    bool positive(const double (*A)[MOST]) const {
        double L[MOST][MOST];
        for (int j = 0; j < n; j++)
            for (int i = j; i < n; i++) {
                double sum = A[i][j];
                for (int k = 0; k < j; k++) sum -= L[i][k] * L[j][k];
                if (i == j && !(sum > 0)) return false;
                L[i][j] = i == j ? std::sqrt(sum) : sum / L[j][j];
            }
        return true;
    }

    // The damped step and the decrease it promises; false where there is none.
    bool step_of(const Equations& at, double damping, double* step, double* promised) const {
        double system[MOST][MOST], gradient[MOST], added[MOST];
        for (int i = 0; i < n; i++) {
            gradient[i] = free[i] ? at.gradient[i] : 0, added[i] = free[i] ? damping * at.matrix[i][i] : 0;
            for (int j = 0; j < n; j++)
                system[i][j] = free[i] && free[j] ? at.matrix[i][j] + (corrected ? lacking[i][j] : 0) + (i == j ? added[i] : 0) : i == j;
            step[i] = -gradient[i];
        }
        if (corrected && !positive(system)) return false;
        if (!solved(system, step)) return false;
        double sum = 0;
        for (int i = 0; i < n; i++) sum += step[i] * (added[i] * step[i] - gradient[i]);
        *promised = 0.5 * sum;
        return *promised >= 0 && *promised < std::numeric_limits<double>::infinity();
    }

    void learn(const Equations& before, const Equations& after, const double* step) {
        double change[MOST], seen[MOST], off[MOST], along = 0, said = 0, found = 0, by_step = 0;
        for (int i = 0; i < n; i++) change[i] = free[i] ? after.gradient[i] - before.gradient[i] : 0, along += change[i] * step[i];
        if (!(along > 0)) return;
        if (!corrected) std::fill_n(&lacking[0][0], MOST * MOST, 0.0);
        corrected = true;
        for (int i = 0; i < n; i++) {
            double by_matrix = 0, by_lacking = 0;
            for (int j = 0; j < n; j++) by_matrix += after.matrix[i][j] * step[j], by_lacking += lacking[i][j] * step[j];
            seen[i] = change[i] - (free[i] ? by_matrix : 0);
            said += step[i] * by_lacking, found += step[i] * seen[i];
        }
        said = std::fabs(said);
        if (said > 0) {
            const double size = std::min(1.0, std::fabs(found) / said);
            for (int i = 0; i < n; i++)
                for (int j = 0; j < n; j++) lacking[i][j] *= size;
        }
        for (int i = 0; i < n; i++) {
            off[i] = seen[i];
            for (int j = 0; j < n; j++) off[i] -= lacking[i][j] * step[j];
            by_step += step[i] * off[i];
        }
        for (int i = 0; i < n; i++)
            for (int j = 0; j < n; j++)
                lacking[i][j] += (off[i] * change[j] + off[j] * change[i]) / along - by_step / (along * along) * change[i] * change[j];
    }

public:
    Descent(int unknowns, const bool* free) : n(unknowns), free(free) {}

    // From `state` to where it ends; costs of the start and of every accepted step, `count` of them; the last equations. `rate` is
    // what is known of how much a step leaves of the distance, before and after.
    template <class Evaluate>
    Ending operator()(Evaluate evaluate, const Limits& limits, i64 max_steps, Placement& state, Equations& at, double* costs, i64* count,
                      double& rate) {
        double step[MOST], promised, before = 0, damping = limits.first_damping;
        evaluate(state, at);
        costs[0] = at.cost, *count = 1;
        if (!std::isfinite(at.cost)) return NON_FINITE;
        for (i64 k = 0; k < max_steps; k++) {
            bool known = step_of(at, damping, step, &promised);
            if (!known && corrected) corrected = false, known = step_of(at, damping, step, &promised);
            if (!known) return SINGULAR;
            const double spread = 2 * at.cost / std::max(at.samples - n, 1.0);
            const double distance = std::sqrt(2 * promised / spread);
            if (before > 0) rate = distance / before;
            before = damping <= limits.resolved ? distance : 0;
            if (damping <= limits.resolved && 2 * promised <= limits.share * limits.share * spread) return COST_TOLERANCE;
            if (damping <= limits.resolved && distance <= limits.untried && rate * distance <= limits.share) {
                state = moved(state, n - 2, step);
                costs[(*count)++] = at.cost - promised;
                return COST_TOLERANCE;
            }
            double length = 0;
            for (int i = 0; i < n; i++) length = std::max(length, std::fabs(step[i]));
            if (length > limits.largest_step) {
                before = 0;
                damping *= 10;
                continue;
            }
            const Placement there = moved(state, n - 2, step);
            Equations trial;
            evaluate(there, trial);
            if (std::isfinite(trial.cost) && at.cost - trial.cost > limits.sufficient * promised) {
                const double gain = (at.cost - trial.cost) / promised;
                if (double(*count) > limits.quick && length <= limits.small_step) learn(at, trial, step);
                state = there, at = trial;
                costs[(*count)++] = at.cost;
                damping = std::max(damping * (gain > 0.5 ? 0.1 : 1), 1e-9);
                if (length <= limits.smallest_step) return STEP_TOLERANCE;
                continue;
            }
            if (damping <= limits.resolved && length <= limits.smallest_step) return STEP_TOLERANCE;
            before = 0;
            damping *= 10;
            if (damping > limits.largest_damping) return STALLED;
        }
        return MAX_STEPS;
    }
};

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
