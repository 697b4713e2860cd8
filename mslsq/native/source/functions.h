// Functions of vectors, as PyTorch has them: NaN in, NaN out; one lane never depends on another.

#define EACH(name, function)                                             \
    static inline V name(V x) {                                          \
        V y;                                                             \
        for (int i = 0; i < N; i++) y[i] = FUNCTION(function)(x[i]);     \
        return y;                                                        \
    }
#define EACH_CALLED(name, function) __attribute__((noinline)) EACH(name, function)
#define EACH_PAIR(name, function)                                        \
    __attribute__((noinline)) static V name(V a, V b) {                  \
        V y;                                                             \
        for (int i = 0; i < N; i++) y[i] = FUNCTION(function)(a[i], b[i]); \
        return y;                                                        \
    }

// Of functions of single numbers, in double.
#define DOUBLES(name) __builtin_##name
#define EACH_ONE(name)                                           \
    __attribute__((noinline)) static V name##_(V x) {            \
        V y;                                                     \
        for (int i = 0; i < N; i++) y[i] = (real)name##_one(x[i]); \
        return y;                                                \
    }
#define EACH_TWO(name)                                                     \
    __attribute__((noinline)) static V name##_(V a, V b) {                 \
        V y;                                                               \
        for (int i = 0; i < N; i++) y[i] = (real)name##_one(a[i], b[i]);   \
        return y;                                                          \
    }

EACH(sqrt_, sqrt)
EACH(floor_, floor)
EACH(ceil_, ceil)
EACH(trunc_, trunc)
EACH(round_, nearbyint)
EACH_CALLED(exp2_, exp2)
EACH_CALLED(expm1_, expm1)
EACH_CALLED(log_, log)
EACH_CALLED(log2_, log2)
EACH_CALLED(log10_, log10)
EACH_CALLED(log1p_, log1p)
EACH_CALLED(tan_, tan)
EACH_CALLED(asin_, asin)
EACH_CALLED(acos_, acos)
EACH_CALLED(atan_, atan)
EACH_CALLED(sinh_, sinh)
EACH_CALLED(cosh_, cosh)
EACH_CALLED(tanh_, tanh)
EACH_CALLED(asinh_, asinh)
EACH_CALLED(acosh_, acosh)
EACH_CALLED(atanh_, atanh)
EACH_CALLED(erf_, erf)
EACH_CALLED(erfc_, erfc)
EACH_PAIR(pow_, pow)
EACH_PAIR(atan2_, atan2)
EACH_PAIR(fmod_, fmod)
EACH_PAIR(hypot_, hypot)

static inline I abs_(I x) { return x < 0 ? -x : x; }
static inline V copysign_(V x, V y) { return (V)(((M)x & ~(M)splat(-0.0)) | ((M)y & (M)splat(-0.0))); }
static inline V sign_(V x) { return x > 0 ? splat(1) : (x < 0 ? splat(-1) : splat(0)); }
static inline I sign_(I x) { return (x < 0) - (x > 0); }
static inline V sigmoid_(V x) { return 1 / (1 + exp_(-x)); }

template <class T> static inline T maximum_(T a, T b) { return a != a ? a : (a < b || b != b ? b : a); }
template <class T> static inline T minimum_(T a, T b) { return a != a ? a : (a > b || b != b ? b : a); }

static inline V remainder_(V x, V y) {
    V r = fmod_(x, y);
    return (r != 0) & ((y < 0) != (r < 0)) ? r + y : r;
}
static inline V floor_div_(V x, V y) {
    V rest = fmod_(x, y), quotient = (x - rest) / y;
    quotient = (rest != 0) & ((y < 0) != (rest < 0)) ? quotient - 1 : quotient;
    V whole = floor_(quotient);
    whole = quotient - whole > (real)0.5 ? whole + 1 : whole;
    whole = quotient == 0 ? copysign_(splat(0), x / y) : whole;
    return y == 0 ? x / y : whole;
}
static inline I floor_div_(I a, I b) {
    I q = a / b, r = a - q * b;
    return q + ((r != 0) & ((r < 0) != (b < 0)));  // a mask is −1
}
static inline I modulo_(I a, I b) { return a - floor_div_(a, b) * b; }
