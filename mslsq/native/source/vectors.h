// Vectors that hold one number of several blocks, as the compiler's own vector types; no other header is needed.
// REAL (double or float) and WIDTH (bytes of a register) come with the program.

#define SEPARATE __attribute__((noinline)) static
#define UNROLLED _Pragma("GCC unroll 6")

typedef REAL real;
enum { N = WIDTH / sizeof(real) };
typedef real V __attribute__((vector_size(WIDTH)));
typedef long I __attribute__((vector_size(N * sizeof(long))));
typedef decltype(V{} < V{}) M;  // all bits of a lane set, or none

static inline V splat(real x) { return x - V{}; }  // keeps −0, where V{} + x does not
static inline I splat_integer(long x) { return x - I{}; }
static inline M splat_boolean(bool x) { return x ? V{} == V{} : V{} != V{}; }

template <class T> static inline M mask_(T condition) { return __builtin_convertvector(condition, M); }
template <class T> static inline T select_(M condition, T yes, T no) {
    return __builtin_convertvector(condition, decltype(yes < no)) ? yes : no;
}

static inline V abs_(V x) { return (V)((M)x & ~(M)splat(-0.0)); }

static inline V real_(I x) { return __builtin_convertvector(x, V); }
static inline I integer_(V x) { return __builtin_convertvector(x, I); }

static inline V load(const real* x) {
    V y;
    __builtin_memcpy(&y, x, sizeof y);
    return y;
}
static inline I load(const long* x) {
    I y;
    __builtin_memcpy(&y, x, sizeof y);
    return y;
}
static inline V same(const real* x) { return splat(*x); }
static inline I same(const long* x) { return splat_integer(*x); }
static inline void store(real* x, V y) { __builtin_memcpy(x, &y, sizeof y); }

// Entries at computed places, `step` numbers apart; `lane` is 1 where every lane has its own. A negative place is
// outside: the number there is NaN, or the least integer, which is outside of everything.
static inline V lookup(const real* x, I place, long step, long lane) {
    V y;
    for (int i = 0; i < N; i++) y[i] = place[i] < 0 ? (real)__builtin_nan("") : x[place[i] * step + i * lane];
    return y;
}
static inline I lookup(const long* x, I place, long step, long lane) {
    I y;
    for (int i = 0; i < N; i++) y[i] = place[i] < 0 ? -__LONG_MAX__ - 1 : x[place[i] * step + i * lane];
    return y;
}
// The same among vectors, of which each lane has its own entries.
static inline V lookup_own(const V* x, long first, I place) {
    const real* const own = (const real*)(x + first);
    V y;
    for (int i = 0; i < N; i++) y[i] = place[i] < 0 ? (real)__builtin_nan("") : own[place[i] * N + i];
    return y;
}
static inline I lookup_own(const I* x, long first, I place) {
    const long* const own = (const long*)(x + first);
    I y;
    for (int i = 0; i < N; i++) y[i] = place[i] < 0 ? -__LONG_MAX__ - 1 : own[place[i] * N + i];
    return y;
}
// Of a table of numbers, or of vectors; what is beyond its end is outside, too.
template <int COUNT> static inline I within(I place) { return (place >= 0) & (place < COUNT) ? place : splat_integer(-1); }
template <int COUNT> static inline V pick(const real (&table)[COUNT], I place) { return lookup(table, within<COUNT>(place), 1, 0); }
template <int COUNT> static inline I pick(const long (&table)[COUNT], I place) { return lookup(table, within<COUNT>(place), 1, 0); }
template <int COUNT> static inline V pick(const V (&table)[COUNT], I place) { return lookup_own(table, 0, within<COUNT>(place)); }
template <int COUNT> static inline I pick(const I (&table)[COUNT], I place) { return lookup_own(table, 0, within<COUNT>(place)); }
