// A function of each of many problems, a vector of them at once: their numbers are put side by side, and what comes of them
// goes back to each. No operation mixes lanes; what is added up over problems is added up lane by lane, and then across.

struct Extents {
    long own, arguments, state;       // tensors of which each problem has its own part; the first are its state
    long data, integers;              // numbers of the others
    long outputs, returned, sums;     // tensors that are returned, their numbers, and what is added up behind them
};

struct Work {
    long begin, end;  // problems
    const char* const* own;
    const long* own_steps;
    const char* const* shared;
    real* const* outputs;  // (problems, numbers) each; null: not wanted
    real* sums;
};

// The numbers of one problem in a lane.
static inline void load_lane(const Work& w, const Extents& z, const Own* own, V* state, V* data, I* integers, long lane, long problem) {
    long states = 0, reals = 0, whole = 0;
    for (long k = 0; k < z.own; k++) {
        if (!own[k].is_real) {
            const long* from = (const long*)w.own[k] + problem * w.own_steps[k];
            for (long e = 0; e < own[k].size; e++) entry(integers, whole++, lane) = from[e];
            continue;
        }
        const real* from = (const real*)w.own[k] + problem * w.own_steps[k];
        V* const to = k < z.arguments ? state + states : data + reals;
        (k < z.arguments ? states : reals) += own[k].size;
        for (long e = 0; e < own[k].size; e++) entry(to, e, lane) = from[e];
    }
}

// Where a vector has more lanes than there are problems left, the last one is repeated, and counts once.
static inline void map_problems(const Work& w, const Extents& z, const Own* own, const long* sizes, Step* function) {
    const long vectors = z.state + z.data + z.returned + 2 * z.sums;
    char* const memory = (char*)__builtin_malloc(z.integers * sizeof(I) + vectors * sizeof(V) + 128);
    I* const integers = (I*)aligned(memory);
    V* const state = (V*)(integers + z.integers);
    V *const data = state + z.state, *const found = data + z.data, *const sums = found + z.returned + z.sums;
    for (long k = 0; k < z.sums; k++) sums[k] = V{};
    for (long first = w.begin; first < w.end; first += N) {
        const long count = w.end - first < N ? w.end - first : N;
        for (long i = 0; i < N; i++)
            load_lane(w, z, own, state, data, integers, i, first + (i < count ? i : count - 1));
        function({w.shared, data, integers}, state, found);
        const V* from = found;
        for (long k = 0; k < z.outputs; from += sizes[k++]) {
            real* const to = w.outputs[k] + first * sizes[k];
            for (long i = 0; w.outputs[k] && i < count; i++)
                for (long e = 0; e < sizes[k]; e++) to[i * sizes[k] + e] = ((const real*)(from + e))[i];
        }
        for (long k = 0; k < z.sums; k++) {
            if (count == N)
                sums[k] = sums[k] + from[k];
            else
                for (long i = 0; i < count; i++) sums[k][i] += from[k][i];
        }
    }
    for (long k = 0; k < z.sums; k++) {
        w.sums[k] = 0;
        for (long i = 0; i < N; i++) w.sums[k] += sums[k][i];
    }
    __builtin_free(memory);
}

#define MAPS(name)                                                                                                     \
    extern "C" __attribute__((visibility("default"))) void name(const Work* work) {                                    \
        map_problems(*work, name##_extents, name##_own, name##_outputs, name##_of_one);                                \
    }
