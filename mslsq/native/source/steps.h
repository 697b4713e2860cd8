// The loop of whole solves: as many problems as a vector has lanes take a step at once, and one that has stopped makes
// room for the next. No operation mixes lanes, so a problem's bits depend on nothing but its own data.

struct Inputs {
    const char* const* shared;  // what all problems have in common
    const V* data;              // by entry: what each lane has for itself, real...
    const I* integers;          // ...and whole numbers
};

// Of a tensor of which each problem has its own part: how many numbers that is.
struct Own {
    long size;
    bool is_real;
};

struct Sizes {
    long state, data, integers;  // numbers of a problem; the state begins with the values
    long own;                            // tensors of which each problem has its own part; the values come first
    long unknowns;
    long cost, status, steps, matrix;  // places in the state; of the matrix how many entries it has
};

enum { RECORD = 5, RUNNING = 0 };

// A vector of problems: their numbers (negative: none), states and data.
struct Lanes {
    long* problem;
    V *state, *data;
    I* integers;
};

struct Memory {
    bool is_used;
    Lanes active, waiting;
    long first_waiting, end_waiting;  // the lanes of `waiting` that are still to be taken
};

struct Job {
    long next, end, max_steps;  // the next problem to be started
    char* memory;
    const char* const* own;      // the values of all unknowns, then what each problem has for itself
    const long* own_steps;
    const char* const* shared;
    char* const* outputs;  // values by unknown; cost, gradient norm, matrix; status, steps; the history of five
};

typedef void Start(const Inputs&, V* state, V* record);
typedef void Step(const Inputs&, V* state, V* record);

static inline char* aligned(char* at) { return (char*)(((unsigned long)at + 127) / 128 * 128); }

static inline char* laid_out(char* at, const Sizes& z, Lanes& lanes) {
    lanes.integers = (I*)at, at += z.integers * sizeof(I);
    lanes.state = (V*)at, at += z.state * sizeof(V);
    lanes.data = (V*)at, at += z.data * sizeof(V);
    lanes.problem = (long*)at, at += N * sizeof(long);
    return aligned(at);
}

// The bytes of memory that a job needs.
static inline long memory_bytes(const Sizes& z) {
    Lanes lanes;
    char* const nothing = 0;
    return sizeof(Memory) + 128 + 2 * (laid_out(nothing, z, lanes) - nothing);
}

static inline real& entry(V* vectors, long k, long lane) { return ((real*)(vectors + k))[lane]; }
static inline long& entry(I* vectors, long k, long lane) { return ((long*)(vectors + k))[lane]; }

// Put the numbers of one problem into a lane; those of its start with them.
static inline void load_problem(const Job& job, const Sizes& z, const Own* own, Lanes& lanes, long lane, long problem) {
    lanes.problem[lane] = problem;
    long values = 0, data = 0, integers = 0;
    for (long k = 0; k < z.own; k++) {
        if (!own[k].is_real) {
            const long* from = (const long*)job.own[k] + problem * job.own_steps[k];
            for (long e = 0; e < own[k].size; e++) entry(lanes.integers, integers++, lane) = from[e];
            continue;
        }
        const real* from = (const real*)job.own[k] + problem * job.own_steps[k];
        if (k < z.unknowns)
            for (long e = 0; e < own[k].size; e++) entry(lanes.state, values++, lane) = from[e];
        else
            for (long e = 0; e < own[k].size; e++) entry(lanes.data, data++, lane) = from[e];
    }
}

static inline void move_problem(const Sizes& z, Lanes& to, long lane, Lanes& from, long place) {
    to.problem[lane] = from.problem[place];
    for (long k = 0; k < z.state; k++) entry(to.state, k, lane) = entry(from.state, k, place);
    for (long k = 0; k < z.data; k++) entry(to.data, k, lane) = entry(from.data, k, place);
    for (long k = 0; k < z.integers; k++) entry(to.integers, k, lane) = entry(from.integers, k, place);
}

// What the history keeps of a step: cost, norms of gradient and step, damping, acceptance.
static inline void note(const Job& job, const Sizes& z, Lanes& lanes, long lane, V* record) {
    const long problem = lanes.problem[lane], at = problem * (job.max_steps + 1) + (long)entry(lanes.state, z.steps, lane);
    char* const* outputs = job.outputs + z.unknowns;
    ((real*)outputs[1])[problem] = entry(record, 1, lane);
    for (long k = 0; k < RECORD - 1; k++) ((real*)outputs[5 + k])[at] = entry(record, k, lane);
    outputs[4 + RECORD][at] = entry(record, RECORD - 1, lane) != 0;
}

static inline bool has_stopped(const Job& job, const Sizes& z, Lanes& lanes, long lane) {
    return entry(lanes.state, z.status, lane) != RUNNING || entry(lanes.state, z.steps, lane) >= job.max_steps;
}

static inline void finish(const Job& job, const Sizes& z, const Own* own, Lanes& lanes, long lane, const long* places) {
    const long problem = lanes.problem[lane];
    long at = 0;
    for (long k = 0; k < z.unknowns; k++)
        for (long e = 0; e < own[k].size; e++)
            ((real*)job.outputs[k])[problem * own[k].size + e] = entry(lanes.state, at++, lane);
    char* const* outputs = job.outputs + z.unknowns;
    ((real*)outputs[0])[problem] = entry(lanes.state, z.cost, lane);
    for (long e = 0; e < z.matrix; e++)
        ((real*)outputs[2])[problem * z.matrix + e] = places[e] < 0 ? (real)0 : entry(lanes.state, places[e], lane);
    ((long*)outputs[3])[problem] = (long)entry(lanes.state, z.status, lane);
    ((long*)outputs[4])[problem] = (long)entry(lanes.state, z.steps, lane);
    lanes.problem[lane] = -1;
}

// Start the next problems, a vector of them at once. Where there are fewer, the last is repeated.
static inline void start_waiting(
    Job& job, const Sizes& z, const Own* own, Memory& memory, const Inputs& inputs, Start* start
) {
    const long count = job.end - job.next < N ? job.end - job.next : N;
    for (long i = 0; i < N; i++)
        load_problem(job, z, own, memory.waiting, i, job.next + (i < count ? i : count - 1));
    V record[RECORD];
    start(inputs, memory.waiting.state, record);
    for (long i = 0; i < count; i++) note(job, z, memory.waiting, i, record);
    job.next += count;
    memory.first_waiting = 0, memory.end_waiting = count;
}

// At most `budget` steps of a vector of problems; is everything done?
static inline bool advance(
    Job& job, const Sizes& z, const Own* own, const long* places, Start* start, Step* step, long budget
) {
    Memory& memory = *(Memory*)job.memory;
    char* at = aligned(job.memory + sizeof(Memory));
    at = laid_out(at, z, memory.active);
    laid_out(at, z, memory.waiting);
    Lanes &active = memory.active, &waiting = memory.waiting;
    for (long i = 0; i < N && !memory.is_used; i++) active.problem[i] = -1;
    memory.is_used = true;
    const Inputs of_active = {job.shared, active.data, active.integers};
    const Inputs of_waiting = {job.shared, waiting.data, waiting.integers};
    while (true) {
        bool is_idle = true;
        for (long i = 0; i < N; i++) {
            while (active.problem[i] < 0) {
                if (memory.first_waiting == memory.end_waiting) {
                    if (job.next == job.end) break;
                    if (budget-- <= 0) return false;
                    start_waiting(job, z, own, memory, of_waiting, start);
                }
                const long place = memory.first_waiting++;
                if (has_stopped(job, z, waiting, place))
                    finish(job, z, own, waiting, place, places);
                else
                    move_problem(z, active, i, waiting, place);
            }
            is_idle &= active.problem[i] < 0;
        }
        if (is_idle) return true;
        if (budget-- <= 0) return false;
        V record[RECORD];
        step(of_active, active.state, record);
        for (long i = 0; i < N; i++) {
            if (active.problem[i] < 0) continue;
            note(job, z, active, i, record);
            if (has_stopped(job, z, active, i)) finish(job, z, own, active, i, places);
        }
    }
}

#define SOLVES(name)                                                                                                   \
    extern "C" __attribute__((visibility("default"))) long name##_bytes() { return memory_bytes(name##_sizes); }       \
    extern "C" __attribute__((visibility("default"))) long name(Job* job, long budget) {                               \
        return advance(*job, name##_sizes, name##_own, name##_places, name##_start, name##_step, budget);              \
    }
