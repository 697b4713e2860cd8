// sin, cos and exp of vectors by polynomials. Where an argument is too large for them (or not finite), that lane alone
// is computed by the C library.

static const bool DOUBLE = sizeof(real) == 8;
// Added to a small number, it leaves the nearest whole number in the last bits: 1.5 · 2^52, 1.5 · 2^23.
static const real WHOLE = DOUBLE ? (real)0x1.8p52 : (real)0x1.8p23f;

static inline bool any(M mask) {
    bool found = false;
    for (int i = 0; i < N; i++) found |= mask[i] != 0;
    return found;
}

// Horner's rule, the coefficient of the highest power first.
template <int COUNT> static inline V polynomial(V x, const real (&coefficients)[COUNT]) {
    V y = splat(coefficients[0]);
    for (int k = 1; k < COUNT; k++) y = y * x + coefficients[k];
    return y;
}

// sin and cos between −π/4 and π/4: the coefficients of fdlibm (k_sin.c, k_cos.c; Sun Microsystems, 1993).
static const real SINE[] = {(real)1.58969099521155010221e-10, (real)-2.50507602534068634195e-08,
                            (real)2.75573137070700676789e-06, (real)-1.98412698298579493134e-04,
                            (real)8.33333333332248946124e-03, (real)-1.66666666666666324348e-01};
static const real COSINE[] = {(real)-1.13596475577881948265e-11, (real)2.08757232129817482790e-09,
                              (real)-2.75573143513906633035e-07, (real)2.48015872894767294178e-05,
                              (real)-1.38888888888741095749e-03, (real)4.16666666666666019037e-02};
// π/2 in four parts, whose products with the number of quarter turns are exact up to the limit, but for the last: of 33
// bits for double (fdlibm's e_rem_pio2.c), of 11 for float.
static const real QUARTER[] = {DOUBLE ? (real)1.57079632673412561417e+00 : (real)0x1.9200000000000p+0,
                               DOUBLE ? (real)6.07710050630396597660e-11 : (real)0x1.fb40000000000p-12,
                               DOUBLE ? (real)2.02226624871116645580e-21 : (real)0x1.4440000000000p-24,
                               DOUBLE ? (real)8.47842766036889956997e-32 : (real)0x1.68c2340000000p-39};
static const real LARGEST_ANGLE = DOUBLE ? (real)1e5 : (real)4e3;

// sin(x + quarters · π/2)
static inline V sine_of(V x, int quarters) {
    const V turned = x * (real)0.636619772367581343076 + WHOLE, n = turned - WHOLE;
    const V r = (((x - n * QUARTER[0]) - n * QUARTER[1]) - n * QUARTER[2]) - n * QUARTER[3], z = r * r;
    const V sine = r + r * z * polynomial(z, SINE);
    const V half = (real)0.5 * z, near = 1 - half;
    const V cosine = near + (((1 - near) - half) + z * z * polynomial(z, COSINE));
    const M quarter = (M)turned + quarters;
    const V y = (quarter & 1) != 0 ? cosine : (r == 0 ? r : sine);
    return (quarter & 2) != 0 ? -y : y;
}
__attribute__((noinline)) static V sin_(V x) {
    V y = sine_of(x, 0);
    const M outside = ~mask_(abs_(x) < LARGEST_ANGLE);
    if (any(outside))
        for (int i = 0; i < N; i++) y[i] = outside[i] ? FUNCTION(sin)(x[i]) : y[i];
    return y;
}
__attribute__((noinline)) static V cos_(V x) {
    V y = sine_of(x, 1);
    const M outside = ~mask_(abs_(x) < LARGEST_ANGLE);
    if (any(outside))
        for (int i = 0; i < N; i++) y[i] = outside[i] ? FUNCTION(cos)(x[i]) : y[i];
    return y;
}

// eˣ = 2ⁿ eʳ with |r| ≤ log(2)/2; eʳ by its series, whose 14th term is 4e-18.
static const real EXPONENTIAL[] = {
    (real)(1 / 6227020800.0), (real)(1 / 479001600.0), (real)(1 / 39916800.0), (real)(1 / 3628800.0),
    (real)(1 / 362880.0), (real)(1 / 40320.0), (real)(1 / 5040.0), (real)(1 / 720.0), (real)(1 / 120.0),
    (real)(1 / 24.0), (real)(1 / 6.0), (real)0.5, 1, 1};
static const real LOG2[] = {DOUBLE ? (real)6.93147180369123816490e-01 : (real)0.693359375f,
                            DOUBLE ? (real)1.90821492927058770002e-10 : (real)-2.12194440e-4f};
static const int MANTISSA = DOUBLE ? 52 : 23, BIAS = DOUBLE ? 1023 : 127;

// 2ⁿ of a whole number that an exponent can hold
static inline V power_of_two(V n) { return (V)(((M)(n + WHOLE) - (M)splat(WHOLE) + BIAS) << MANTISSA); }

__attribute__((noinline)) static V exp_(V x) {
    const real least = DOUBLE ? (real)-746 : (real)-104, most = DOUBLE ? (real)710 : (real)89;
    const V limited = x < least ? splat(least) : (x > most ? splat(most) : x);
    const V n = (limited * (real)1.44269504088896338700 + WHOLE) - WHOLE;
    const V r = (limited - n * LOG2[0]) - n * LOG2[1];
    const V half = ((real)0.5 * n + WHOLE) - WHOLE;  // in two factors: 2ⁿ alone may be too small or too large
    return polynomial(r, EXPONENTIAL) * power_of_two(half) * power_of_two(n - half);
}
