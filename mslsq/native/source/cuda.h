// One number of one lane, where a thread of a GPU has a lane: what `vectors.h`, `elementary.h` and `functions.h` are for
// the vectors of a processor. REAL (double or float), FUNCTION and THREADS come with the program.

#define SEPARATE static inline  // not apart: numbers that a function is given stay in registers
#define UNROLLED _Pragma("unroll")

typedef REAL real;
typedef real V;

#ifdef __CUDACC_RTC__  // NVRTC has no names of the C++ compilers of processors
#define __LONG_MAX__ 0x7fffffffffffffffL
static inline double __builtin_nan(const char*) { return __longlong_as_double(0x7ff8000000000000LL); }
static inline double __builtin_inf() { return __longlong_as_double(0x7ff0000000000000LL); }
#endif

// A whole number that wraps around, as PyTorch's do: C++ leaves open what a `long` that is too large becomes.
struct I {
    long x;
    I() = default;
    I(long value) : x(value) {}
};
typedef unsigned long Bits;
static inline I operator+(I a, I b) { return (long)((Bits)a.x + (Bits)b.x); }
static inline I operator-(I a, I b) { return (long)((Bits)a.x - (Bits)b.x); }
static inline I operator*(I a, I b) { return (long)((Bits)a.x * (Bits)b.x); }
static inline I operator-(I a) { return (long)(0 - (Bits)a.x); }
static inline I operator&(I a, I b) { return a.x & b.x; }
static inline I operator|(I a, I b) { return a.x | b.x; }
static inline I operator^(I a, I b) { return a.x ^ b.x; }
static inline I operator~(I a) { return ~a.x; }
static inline bool operator<(I a, I b) { return a.x < b.x; }
static inline bool operator>(I a, I b) { return a.x > b.x; }
static inline bool operator<=(I a, I b) { return a.x <= b.x; }
static inline bool operator==(I a, I b) { return a.x == b.x; }
static inline bool operator!=(I a, I b) { return a.x != b.x; }

// A condition; no `bool`, of which ~ would be a number that is never 0.
struct M {
    bool x;
};
static inline M operator&(M a, M b) { return {a.x && b.x}; }
static inline M operator|(M a, M b) { return {a.x || b.x}; }
static inline M operator^(M a, M b) { return {a.x != b.x}; }
static inline M operator~(M a) { return {!a.x}; }
static inline bool operator==(M a, M b) { return a.x == b.x; }
static inline bool operator!=(M a, M b) { return a.x != b.x; }

static inline V splat(real x) { return x; }
static inline I splat_integer(long x) { return x; }
static inline M splat_boolean(bool x) { return {x}; }
static inline M mask_(bool condition) { return {condition}; }
template <class T> static inline T select_(M condition, T yes, T no) { return condition.x ? yes : no; }
static inline V real_(I x) { return (real)x.x; }
// Of NaN, and of what is too large, the least integer, as x86 has it; GPUs have several answers.
static inline I integer_(V x) { return x >= -0x1p63 && x < 0x1p63 ? (long)x : -__LONG_MAX__ - 1; }

static inline V load(const real* x) { return *x; }
static inline I load(const long* x) { return *x; }
static inline V same(const real* x) { return *x; }
static inline I same(const long* x) { return *x; }
static inline void store(real* x, V y) { *x = y; }

static inline V missing_like(V) { return (real)__builtin_nan(""); }
static inline I missing_like(I) { return -__LONG_MAX__ - 1; }
static inline long missing_like(long) { return -__LONG_MAX__ - 1; }

// Entries at computed places, `step` numbers apart; a thread has one lane, wherever that begins. A negative place is
// outside: NaN, or the least integer.
static inline V lookup(const real* x, I place, long step, long = 0) {
    return place.x < 0 ? (real)__builtin_nan("") : x[place.x * step];
}
static inline I lookup(const long* x, I place, long step, long = 0) {
    return place.x < 0 ? -__LONG_MAX__ - 1 : x[place.x * step];
}
// The same among the numbers of a thread.
template <class T> static inline auto lookup_own(const T& own, long first, I place) -> decltype(own[0] + 0) {
    return place.x < 0 ? missing_like(own[0] + 0) : own[first + place.x];
}
template <class T, int COUNT> static inline T pick(const T (&table)[COUNT], I place) {
    return place.x < 0 || place.x >= COUNT ? missing_like(table[0]) : table[place.x];
}
template <int COUNT> static inline I pick(const long (&table)[COUNT], I place) {
    return place.x < 0 || place.x >= COUNT ? missing_like(I(0)) : I(table[place.x]);
}

#define EACH(name, function) \
    static inline V name(V x) { return FUNCTION(function)(x); }
#define EACH_PAIR(name, function) \
    static inline V name(V a, V b) { return FUNCTION(function)(a, b); }

// Of functions of single numbers, in double.
#define DOUBLES(name) name
#define EACH_ONE(name) \
    static inline V name##_(V x) { return (real)name##_one(x); }
#define EACH_TWO(name) \
    static inline V name##_(V a, V b) { return (real)name##_one(a, b); }
static inline double huge_val() { return __builtin_inf(); }

EACH(abs_, fabs)
EACH(sqrt_, sqrt)
EACH(floor_, floor)
EACH(ceil_, ceil)
EACH(trunc_, trunc)
EACH(round_, nearbyint)
EACH(sin_, sin)
EACH(cos_, cos)
EACH(tan_, tan)
EACH(exp_, exp)
EACH(exp2_, exp2)
EACH(expm1_, expm1)
EACH(log_, log)
EACH(log2_, log2)
EACH(log10_, log10)
EACH(log1p_, log1p)
EACH(asin_, asin)
EACH(acos_, acos)
EACH(atan_, atan)
EACH(sinh_, sinh)
EACH(cosh_, cosh)
EACH(tanh_, tanh)
EACH(asinh_, asinh)
EACH(acosh_, acosh)
EACH(atanh_, atanh)
EACH(erf_, erf)
EACH(erfc_, erfc)
EACH_PAIR(pow_, pow)
EACH_PAIR(atan2_, atan2)
EACH_PAIR(fmod_, fmod)
EACH_PAIR(hypot_, hypot)
EACH_PAIR(copysign_, copysign)

static inline I abs_(I x) { return x < 0 ? -x : x; }
static inline V sign_(V x) { return (real)((x > 0) - (x < 0)); }
static inline I sign_(I x) { return (long)(x > 0) - (long)(x < 0); }
static inline V sigmoid_(V x) { return 1 / (1 + exp_(-x)); }

template <class T> static inline T maximum_(T a, T b) { return a != a ? a : (a < b || b != b ? b : a); }
template <class T> static inline T minimum_(T a, T b) { return a != a ? a : (b < a || b != b ? b : a); }

static inline V remainder_(V x, V y) {
    const V r = fmod_(x, y);
    return r != 0 && (y < 0) != (r < 0) ? r + y : r;
}
static inline V floor_div_(V x, V y) {
    const V rest = fmod_(x, y);
    V quotient = (x - rest) / y;
    quotient = rest != 0 && (y < 0) != (rest < 0) ? quotient - 1 : quotient;
    V whole = floor_(quotient);
    whole = quotient - whole > (real)0.5 ? whole + 1 : whole;
    whole = quotient == 0 ? copysign_(0, x / y) : whole;
    return y == 0 ? x / y : whole;
}
static inline I floor_div_(I a, I b) {
    const long q = a.x / b.x, r = a.x - q * b.x;
    return q - (r != 0 && (r < 0) != (b.x < 0));
}
static inline I modulo_(I a, I b) { return a - floor_div_(a, b) * b; }

// Where the tensors of a call are: steps between problems and between the entries of a block, in numbers.
template <int COUNT> struct Given {
    const void* data[COUNT];
    long outer_step[COUNT];
    long step[COUNT];
};

// The lanes of a thread, of each problem. Neighbouring threads have neighbouring lanes, whose numbers are neighbours.
#define EACH_LANE                                                                                                      \
    for (long problem = blockIdx.y; problem < outer; problem += gridDim.y)                                             \
        for (long lane = (long)blockIdx.x * THREADS + threadIdx.x; lane < lanes; lane += (long)gridDim.x * THREADS)
