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
    long cost, status, steps, creep, matrix;  // places in the state; of the matrix how many entries it has
    double patience;                          // a problem creeps whose number at `creep` is at least that
};

enum { RECORD = 5, RUNNING = 0, CREEPS = -2, OF_ALL = 1, OF_NONE = 2 };

// A vector of problems: their numbers (negative: none), states and data.
struct Lanes {
    long* problem;
    V *state, *data;
    I* integers;
};

struct Memory {
    bool is_used;
    Lanes active, bending, waiting;   // bent are the steps of `bending` alone
    long first_waiting, end_waiting;  // the lanes of `waiting` that are still to be taken
};

struct Job {
    long next, end, max_steps;  // the next problem to be started
    char* memory;
    const char* const* own;      // the values of all unknowns, then what each problem has for itself
    const long* own_steps;
    const char* const* shared;
    char* const* outputs;  // values by unknown; cost, gradient norm, matrix; status, steps; the history of five
    long bending;          // of problems that creep; of all from their starts; of none
    long problems;         // in all, of which [next, end) are this job's: the history of all is in one piece
    long* rows;            // by problem, its row in all groups of the history but the first; null: that of the problem
    long next_row;         // that has not been given to a problem yet
};

// The history has its steps in groups, (groups, rows, GROUP): of groups that no problem comes to no page is touched, and
// the steps of a problem share lines of the cache. Behind the first group rows are given to problems as they come to
// it: where one in a hundred goes on, the rows of these lie side by side, and not in every other page.
enum { GROUP = 8 };

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
    return sizeof(Memory) + 128 + 3 * (laid_out(nothing, z, lanes) - nothing);
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
static inline void note(Job& job, const Sizes& z, Lanes& lanes, long lane, V* record) {
    const long problem = lanes.problem[lane], steps = (long)entry(lanes.state, z.steps, lane);
    if (steps == GROUP && job.rows) job.rows[problem] = job.next_row++;
    const long row = steps >= GROUP && job.rows ? job.rows[problem] : problem;
    const long at = (steps / GROUP * job.problems + row) * GROUP + steps % GROUP;
    char* const* outputs = job.outputs + z.unknowns;
    ((real*)outputs[1])[problem] = entry(record, 1, lane);
    for (long k = 0; k < RECORD - 1; k++) ((real*)outputs[5 + k])[at] = entry(record, k, lane);
    outputs[4 + RECORD][at] = entry(record, RECORD - 1, lane) != 0;
}

static inline bool creeps(const Job& job, const Sizes& z, Lanes& lanes, long lane) {
    return z.creep >= 0 && job.bending != OF_NONE && entry(lanes.state, z.creep, lane) >= z.patience;
}

// Where steps are not bent, one that creeps is not stepped on.
static inline bool has_stopped(const Job& job, const Sizes& z, Lanes& lanes, long lane, bool bends) {
    return entry(lanes.state, z.status, lane) != RUNNING || entry(lanes.state, z.steps, lane) >= job.max_steps ||
           (!bends && creeps(job, z, lanes, lane));
}

static inline void finish(const Job& job, const Sizes& z, const Own* own, Lanes& lanes, long lane, const long* places, bool bends) {
    const long problem = lanes.problem[lane];
    long at = 0;
    for (long k = 0; k < z.unknowns; k++)
        for (long e = 0; e < own[k].size; e++)
            ((real*)job.outputs[k])[problem * own[k].size + e] = entry(lanes.state, at++, lane);
    char* const* outputs = job.outputs + z.unknowns;
    ((real*)outputs[0])[problem] = entry(lanes.state, z.cost, lane);
    for (long e = 0; e < z.matrix; e++)
        ((real*)outputs[2])[problem * z.matrix + e] = places[e] < 0 ? (real)0 : entry(lanes.state, places[e], lane);
    const long status = (long)entry(lanes.state, z.status, lane);
    const bool is_left = !bends && status == RUNNING && entry(lanes.state, z.steps, lane) < job.max_steps;
    ((long*)outputs[3])[problem] = is_left ? CREEPS : status;
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
    if (job.bending == OF_ALL) memory.waiting.state[z.creep] = splat((real)z.patience);
    for (long i = 0; i < count; i++) note(job, z, memory.waiting, i, record);
    job.next += count;
    memory.first_waiting = 0, memory.end_waiting = count;
}

// A lane of `bending` that is free, or one whose problem creeps no more; none: -1.
static inline long lane_to_leave(const Job& job, const Sizes& z, Memory& memory, bool is_free) {
    for (long i = 0; i < N; i++) {
        const bool is_none = memory.bending.problem[i] < 0;
        if (is_free ? is_none : !is_none && !creeps(job, z, memory.bending, i)) return i;
    }
    return -1;
}

// At most `budget` steps of a vector of problems; is everything done? Problems that creep are put together, so that
// others do not pay for their steps; to the bit both kinds of steps are the same for who does not creep. `bent` is
// null where steps cannot be bent.
static inline bool advance(
    Job& job, const Sizes& z, const Own* own, const long* places, Start* start, Step* step, Step* bent, long budget
) {
    const bool bends = bent != 0;
    Memory& memory = *(Memory*)job.memory;
    Lanes &active = memory.active, &bending = memory.bending, &waiting = memory.waiting;
    char* at = aligned(job.memory + sizeof(Memory));
    at = laid_out(at, z, active);
    at = laid_out(at, z, bending);
    laid_out(at, z, waiting);
    for (long i = 0; i < N && !memory.is_used; i++) active.problem[i] = bending.problem[i] = -1;
    memory.is_used = true;
    const Inputs of_waiting = {job.shared, waiting.data, waiting.integers};
    while (true) {
        bool is_idle = true, is_due = false;
        for (long i = 0; i < N; i++) {
            while (true) {
                if (active.problem[i] >= 0) {
                    if (!bends || !creeps(job, z, active, i)) break;
                    const long free = lane_to_leave(job, z, memory, true);
                    is_due |= free < 0;
                    if (free < 0) break;
                    move_problem(z, bending, free, active, i);
                    active.problem[i] = -1;
                }
                const long back = bends ? lane_to_leave(job, z, memory, false) : -1;
                if (back >= 0) {
                    move_problem(z, active, i, bending, back);
                    bending.problem[back] = -1;
                    continue;
                }
                if (memory.first_waiting == memory.end_waiting) {
                    if (job.next == job.end) break;
                    if (budget-- <= 0) return false;
                    start_waiting(job, z, own, memory, of_waiting, start);
                }
                const long place = memory.first_waiting++;
                if (has_stopped(job, z, waiting, place, bends))
                    finish(job, z, own, waiting, place, places, bends);
                else
                    move_problem(z, active, i, waiting, place);
            }
            is_idle &= active.problem[i] < 0;
        }
        long creeping = 0;
        for (long i = 0; i < N && bends; i++) creeping += bending.problem[i] >= 0;
        if (is_idle && !creeping) return true;
        if (budget-- <= 0) return false;
        const bool is_bent = is_idle || is_due || creeping == N;
        Lanes& now = is_bent ? bending : active;
        V record[RECORD];
        (is_bent ? bent : step)({job.shared, now.data, now.integers}, now.state, record);
        for (long i = 0; i < N; i++) {
            if (now.problem[i] < 0) continue;
            note(job, z, now, i, record);
            if (has_stopped(job, z, now, i, bends)) finish(job, z, own, now, i, places, bends);
        }
    }
}

#define SOLVES(name, bent)                                                                                             \
    extern "C" __attribute__((visibility("default"))) long name##_bytes() { return memory_bytes(name##_sizes); }       \
    extern "C" __attribute__((visibility("default"))) long name(Job* job, long budget) {                               \
        return advance(*job, name##_sizes, name##_own, name##_places, name##_start, name##_step, bent, budget);        \
    }
