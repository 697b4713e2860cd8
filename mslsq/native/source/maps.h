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

// The numbers of a vector of problems, from `first` on; the last of `count` is repeated. A vector is put together in a
// register: written lane by lane and read at once, it would have to wait for its writes.
static inline void load_lanes(const Work& w, const Extents& z, const Own* own, V* state, V* data, I* integers, long first, long count) {
    long states = 0, reals = 0, whole = 0;
    for (long k = 0; k < z.own; k++) {
        long begin[N];
        for (long i = 0; i < N; i++) begin[i] = (first + (i < count ? i : count - 1)) * w.own_steps[k];
        if (!own[k].is_real) {
            for (long e = 0; e < own[k].size; e++, whole++)
                for (long i = 0; i < N; i++) entry(integers, whole, i) = ((const long*)w.own[k] + begin[i])[e];
            continue;
        }
        const real* const from = (const real*)w.own[k];
        V* const to = k < z.arguments ? state + states : data + reals;
        (k < z.arguments ? states : reals) += own[k].size;
        for (long e = 0; e < own[k].size; e++) {
            V x;
            for (long i = 0; i < N; i++) x[i] = from[begin[i] + e];
            to[e] = x;
        }
    }
}

// Numbers of a vector of problems to where each has its own.
static inline void store_lanes(real* to, const V* from, long size, long count) {
    for (long e = 0; e < size; e++) {
        const V x = from[e];
        if (count == N)
            for (long i = 0; i < N; i++) to[i * size + e] = x[i];
        else
            for (long i = 0; i < count; i++) to[i * size + e] = x[i];
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
        load_lanes(w, z, own, state, data, integers, first, count);
        function({w.shared, data, integers}, state, found);
        const V* from = found;
        for (long k = 0; k < z.outputs; from += sizes[k++]) {
            if (w.outputs[k]) store_lanes(w.outputs[k] + first * sizes[k], from, sizes[k], count);
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
