// The linear systems of whole solves, for the vectors of a processor and the threads of a GPU alike. `Inputs` and UNROLLED
// come with either.

struct Inputs;

// The damped normal equations of COUNT components with SIZE columns each, by LDLᵀ without square roots, with the pivots
// of `mslsq.linear.UnrolledCholesky`. Given are the lower triangles, right-hand sides and damping; found are the steps,
// and 1 where all pivots are positive, else 0.
template <int COUNT, int SIZE> static void solve_normal(const Inputs&, const V* given, V* found) {
    enum { TRIANGLE = SIZE * (SIZE + 1) / 2 };
    M solved = splat_boolean(true);
    for (int component = 0; component < COUNT; component++) {
        const V* a = given + component * TRIANGLE;
        const V* b = given + COUNT * TRIANGLE + component * SIZE;
        const V* damping = b + COUNT * SIZE;
        V* step = found + component * SIZE;
        V lower[TRIANGLE], scaled[SIZE], inverse[SIZE], y[SIZE];  // scaled: of the row at hand
        UNROLLED
        for (int i = 0; i < SIZE; i++) {
            const int row = i * (i + 1) / 2;
            UNROLLED
            for (int j = 0; j < i; j++) {
                V entry = a[row + j];
                UNROLLED
                for (int k = 0; k < j; k++) entry = entry - scaled[k] * lower[j * (j + 1) / 2 + k];
                scaled[j] = entry;
                lower[row + j] = entry * inverse[j];
            }
            V pivot = a[row + i] + damping[i], right = b[i];
            UNROLLED
            for (int k = 0; k < i; k++) {
                pivot = pivot - scaled[k] * lower[row + k];
                right = right - lower[row + k] * y[k];
            }
            const M positive = mask_(pivot > 0);
            solved = solved & positive;
            inverse[i] = 1 / select_(positive, pivot, splat(1));
            y[i] = right;
        }
        UNROLLED
        for (int i = SIZE - 1; i >= 0; i--) {
            V x = y[i] * inverse[i];
            UNROLLED
            for (int k = i + 1; k < SIZE; k++) x = x + lower[k * (k + 1) / 2 + i] * step[k];
            step[i] = -x;
        }
    }
    found[COUNT * SIZE] = select_(solved, splat(1), splat(0));
}
