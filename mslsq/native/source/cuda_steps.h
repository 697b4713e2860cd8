// Whole solves by the threads of a GPU, each of which takes some steps of one problem. What is known of a problem stays in
// its thread from step to step, and in memory from launch to launch: a column of numbers for each problem, neighbours
// side by side. No thread knows of another, so a problem's bits depend on nothing but its own data.

template <class T> struct Column {
    const T* first;
    long step;
    T operator[](long entry) const { return first[entry * step]; }
};

struct Inputs {
    const void* const* shared;  // what all problems have in common
    Column<real> data;          // by entry: what this one has for itself, real...
    Column<long> integers;      // ...and whole numbers
};

enum { RECORD = 5, RUNNING = 0 };
enum { STATES, RECORDS, DATA, INTEGERS, SHARED };  // what a launch is given; of what is shared a place for each tensor

template <int COUNT> static inline Inputs inputs_of(const Given<COUNT>& given, long lane) {
    return {
        given.data + SHARED,
        {(const real*)given.data[DATA] + lane, given.step[DATA]},
        {(const long*)given.data[INTEGERS] + lane, given.step[INTEGERS]}
    };
}

// What the history keeps of a step: cost, norms of gradient and step, damping, acceptance; (RECORD, steps, lanes).
template <int COUNT> static inline void note(const Given<COUNT>& given, long step, long lane, long lanes, const V* record) {
    real* const at = (real*)given.data[RECORDS] + step * lanes + lane;
    for (int k = 0; k < RECORD; k++) at[k * given.step[RECORDS]] = record[k];
}

// All of a state, and one number more: the norm of the gradient.
template <int STATE> static inline void keep(real* state, long step, const V* s, const V* record) {
    UNROLLED
    for (int k = 0; k < STATE; k++) state[k * step] = s[k];
    state[STATE * step] = record[1];
}

#define EACH_PROBLEM                                                                                                   \
    for (long lane = (long)blockIdx.x * THREADS + threadIdx.x; lane < lanes; lane += (long)gridDim.x * THREADS)

typedef void Stepping(const Inputs&, V* state, V* record);

// From the first KNOWN numbers of every problem's state to all of it.
template <int STATE, int KNOWN, Stepping START, int COUNT>
static inline void begin(const Given<COUNT>& given, const long lanes) {
    EACH_PROBLEM {
        real* const state = (real*)given.data[STATES] + lane;
        V s[STATE], record[RECORD];
        UNROLLED
        for (int k = 0; k < KNOWN; k++) s[k] = state[k * given.step[STATES]];
        START(inputs_of(given, lane), s, record);
        note(given, 0, lane, lanes, record);
        keep<STATE>(state, given.step[STATES], s, record);
    }
}

// At most `steps` steps of every problem that is running.
template <int STATE, int STATUS, Stepping STEP, int COUNT>
static inline void advance(const Given<COUNT>& given, const long steps, const long lanes) {
    EACH_PROBLEM {
        real* const state = (real*)given.data[STATES] + lane;
        if (state[STATUS * given.step[STATES]] != RUNNING) continue;
        V s[STATE], record[RECORD];
        UNROLLED
        for (int k = 0; k < STATE; k++) s[k] = state[k * given.step[STATES]];
        const Inputs in = inputs_of(given, lane);
        for (long k = 0; k < steps && s[STATUS] == RUNNING; k++) {
            STEP(in, s, record);
            note(given, k, lane, lanes, record);
        }
        keep<STATE>(state, given.step[STATES], s, record);
    }
}
