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

// A compiled program of blocks, as `loop.h` has it.
typedef void Program(long outer, long begin, long end, char* const* data, const long* outer_step, const long* step);

// From a symmetric matrix, whose upper triangle stands in rows of `size`, its factor U with UᵀU = A in the same place. Returns
// 0, or which pivot, counted from 1, is not positive. Four rows at once are taken off the rest, a row of it along memory.
__attribute__((unused)) static int factored(real* u, long size) {
    for (long k = 0; k < size; k += 4) {
        const long end = k + 4 < size ? k + 4 : size;
        for (long p = k; p < end; p++) {
            real* row = u + p * size;
            for (long q = k; q < p; q++) {
                const real* above = u + q * size;
                const real factor = above[p];
#pragma GCC ivdep
                for (long j = p; j < size; j++) row[j] -= factor * above[j];
            }
            if (!(row[p] > 0)) return (int)p + 1;
            const real pivot = root(row[p]), inverse = 1 / pivot;
            row[p] = pivot;
#pragma GCC ivdep
            for (long j = p + 1; j < size; j++) row[j] *= inverse;
        }
        if (end - k < 4) break;
        const real *a = u + k * size, *b = a + size, *c = b + size, *d = c + size;
        for (long i = end; i < size; i++) {
            real* row = u + i * size;
            const real fa = a[i], fb = b[i], fc = c[i], fd = d[i];
#pragma GCC ivdep
            for (long j = i; j < size; j++) row[j] -= (fa * a[j] + fb * b[j]) + (fc * c[j] + fd * d[j]);
        }
    }
    return 0;
}

// y becomes the solution of UᵀUx = y.
__attribute__((unused)) static void solved(const real* u, real* y, long size) {
    for (long k = 0; k < size; k++) {
        const real* row = u + k * size;
        const real value = y[k] /= row[k];
#pragma GCC ivdep
        for (long j = k + 1; j < size; j++) y[j] -= value * row[j];
    }
    for (long k = size - 1; k >= 0; k--) {
        const real* row = u + k * size;
        real a = 0, b = 0, c = 0, d = 0;
        long j = k + 1;
        for (; j + 4 <= size; j += 4) {
            a += row[j] * y[j], b += row[j + 1] * y[j + 1], c += row[j + 2] * y[j + 2], d += row[j + 3] * y[j + 3];
        }
        for (; j < size; j++) a += row[j] * y[j];
        y[k] = (y[k] - ((a + b) + (c + d))) / row[k];
    }
}
