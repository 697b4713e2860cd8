// The factors of Hessians of whole solves, for the vectors of a processor.

// The factor L of a symmetric matrix LLᵀ, of COUNT components with SIZE columns each: the lower triangles are given and
// found, and behind them 1 where all pivots are positive, else 0. A pivot that is not is replaced by 1.
template <int COUNT, int SIZE> static void factor_normal(const Inputs&, const V* given, V* found) {
    enum { TRIANGLE = SIZE * (SIZE + 1) / 2 };
    M positive = splat_boolean(true);
    for (int component = 0; component < COUNT; component++) {
        const V* a = given + component * TRIANGLE;
        V* lower = found + component * TRIANGLE;
        V inverse[SIZE];
        UNROLLED
        for (int i = 0; i < SIZE; i++) {
            const int row = i * (i + 1) / 2;
            UNROLLED
            for (int j = 0; j <= i; j++) {
                V entry = a[row + j];
                UNROLLED
                for (int k = 0; k < j; k++) entry = entry - lower[row + k] * lower[j * (j + 1) / 2 + k];
                if (j < i) {
                    lower[row + j] = entry * inverse[j];
                    continue;
                }
                const M is_positive = mask_(entry > 0);
                positive = positive & is_positive;
                lower[row + i] = sqrt_(select_(is_positive, entry, splat(1)));
                inverse[i] = 1 / lower[row + i];
            }
        }
    }
    found[COUNT * TRIANGLE] = select_(positive, splat(1), splat(0));
}

// The solution of LLᵀx = b: given are the lower triangles and the right-hand sides of all components.
template <int COUNT, int SIZE> static void solve_factored(const Inputs&, const V* given, V* found) {
    enum { TRIANGLE = SIZE * (SIZE + 1) / 2 };
    for (int component = 0; component < COUNT; component++) {
        const V* lower = given + component * TRIANGLE;
        const V* b = given + COUNT * TRIANGLE + component * SIZE;
        V* x = found + component * SIZE;
        V inverse[SIZE];
        UNROLLED
        for (int i = 0; i < SIZE; i++) {
            const int row = i * (i + 1) / 2;
            inverse[i] = 1 / lower[row + i];
            V right = b[i];
            UNROLLED
            for (int k = 0; k < i; k++) right = right - lower[row + k] * x[k];
            x[i] = right * inverse[i];
        }
        UNROLLED
        for (int i = SIZE - 1; i >= 0; i--) {
            V left = x[i];
            UNROLLED
            for (int k = i + 1; k < SIZE; k++) left = left - lower[k * (k + 1) / 2 + i] * x[k];
            x[i] = left * inverse[i];
        }
    }
}
