// Small functions of single numbers, for loops over arrays; no other header is needed. REAL comes with the program.

// With -O2 the text of a step takes twice as long to compile, and runs no faster.
#pragma GCC optimize("O1", "tree-vectorize", "vect-cost-model=dynamic")

typedef REAL real;

extern "C" {
double sin(double), cos(double), tan(double), asin(double), acos(double), atan(double), atan2(double, double);
double exp(double), log(double), log1p(double), expm1(double), tanh(double), pow(double, double), fmod(double, double);
}

static inline real root(real x) { return sizeof(real) == 4 ? __builtin_sqrtf(x) : __builtin_sqrt(x); }
static inline bool is_nan(real x) { return x != x; }
static inline real largest(real a, real b) { return is_nan(a) || a > b ? a : b; }
static inline real least(real a, real b) { return is_nan(a) || a < b ? a : b; }
static inline long largest(long a, long b) { return a > b ? a : b; }
static inline long least(long a, long b) { return a < b ? a : b; }
static inline real size_of(real x) { return __builtin_fabs(x); }
static inline long size_of(long x) { return x < 0 ? -x : x; }
static inline long remainder_of(long a, long b) {
    const long r = a % b;
    return r != 0 && (b < 0) != (r < 0) ? r + b : r;
}
static inline real number(real x, real nan, real infinity, real negative) {
    return is_nan(x) ? nan : x == __builtin_inf() ? infinity : x == -__builtin_inf() ? negative : x;
}
