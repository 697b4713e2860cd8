// sin, cos and exp of vectors by polynomials. Where an argument of sin and cos is too large for them (or not finite), that
// lane alone is computed by the C library.

static constexpr bool DOUBLE = sizeof(real) == 8;
// Added to a small number, it leaves the nearest whole number in the last bits: 1.5 · 2^52, 1.5 · 2^23.
static constexpr real WHOLE = DOUBLE ? (real)0x1.8p52 : (real)0x1.8p23f;

static inline bool of_all(M mask) {
    unsigned long words[WIDTH / sizeof(long)], all = -1ul;
    __builtin_memcpy(words, &mask, WIDTH);
    for (int i = 0; i < WIDTH / sizeof(long); i++) all &= words[i];
    return all == -1ul;
}

static constexpr V each(real x) { return x - V{}; }  // `splat`, for tables

// A table where the processor reads it in place. A compiler that sees what is in it makes every vector from one number:
// an instruction more for each with AVX2, two with SSE2.
static inline const V* in_memory(const V* table) {
    asm("" : "+r"(table));
    return table;
}

// Horner's rule, the coefficient of the highest power first.
template <int COUNT> static inline V polynomial(V x, const V (&table)[COUNT]) {
    const V* coefficients = in_memory(table);
    V y = coefficients[0];
    UNROLLED
    for (int k = 1; k < COUNT; k++) y = y * x + coefficients[k];
    return y;
}

// sin and cos between −π/4 and π/4: the coefficients of fdlibm (k_sin.c, k_cos.c; Sun Microsystems, 1993).
static constexpr V SINE[] = {
    each((real)1.58969099521155010221e-10), each((real)-2.50507602534068634195e-08),
    each((real)2.75573137070700676789e-06), each((real)-1.98412698298579493134e-04),
    each((real)8.33333333332248946124e-03), each((real)-1.66666666666666324348e-01)};
static constexpr V COSINE[] = {
    each((real)-1.13596475577881948265e-11), each((real)2.08757232129817482790e-09),
    each((real)-2.75573143513906633035e-07), each((real)2.48015872894767294178e-05),
    each((real)-1.38888888888741095749e-03), each((real)4.16666666666666019037e-02)};
// π/2 in four parts, whose products with the number of quarter turns are exact up to the limit, but for the last: of 33
// bits for double (fdlibm's e_rem_pio2.c), of 11 for float.
static constexpr V QUARTERS[] = {
    each((real)0.636619772367581343076), each(WHOLE),
    each(DOUBLE ? (real)1.57079632673412561417e+00 : (real)0x1.9200000000000p+0),
    each(DOUBLE ? (real)6.07710050630396597660e-11 : (real)0x1.fb40000000000p-12),
    each(DOUBLE ? (real)2.02226624871116645580e-21 : (real)0x1.4440000000000p-24),
    each(DOUBLE ? (real)8.47842766036889956997e-32 : (real)0x1.68c2340000000p-39)};
static const real LARGEST_ANGLE = DOUBLE ? (real)1e5 : (real)4e3;

// sin(x + quarters · π/2)
static inline V sine_of(V x, int quarters) {
    const V* c = in_memory(QUARTERS);
    const V turned = x * c[0] + c[1], n = turned - c[1];
    const V r = (((x - n * c[2]) - n * c[3]) - n * c[4]) - n * c[5], z = r * r;
    const V sine = r + r * z * polynomial(z, SINE);
    const V half = (real)0.5 * z, near = 1 - half;
    const V cosine = near + (((1 - near) - half) + z * z * polynomial(z, COSINE));
    const M quarter = (M)turned + quarters;
    const V y = (quarter & 1) != 0 ? cosine : (r == 0 ? r : sine);
    return (quarter & 2) != 0 ? -y : y;
}
__attribute__((noinline)) static V sin_(V x) {
    V y = sine_of(x, 0);
    const M inside = mask_(abs_(x) < LARGEST_ANGLE);
    if (!of_all(inside))
        for (int i = 0; i < N; i++) y[i] = inside[i] ? y[i] : FUNCTION(sin)(x[i]);
    return y;
}
__attribute__((noinline)) static V cos_(V x) {
    V y = sine_of(x, 1);
    const M inside = mask_(abs_(x) < LARGEST_ANGLE);
    if (!of_all(inside))
        for (int i = 0; i < N; i++) y[i] = inside[i] ? y[i] : FUNCTION(cos)(x[i]);
    return y;
}

// eˣ = 2ⁿ eʳ with |r| ≤ log(2)/2, eʳ = 1 + r + r² q(r). q is the polynomial whose largest error, relative to eʳ, is least
// (by Remez' exchange): 3.6e-18 for double, 3.1e-9 for float; the series takes three terms more. Even and odd powers
// are two chains, since a processor waits for one. The series in one chain took 1.9, 1.5 and 1.3 times as long (SSE2, AVX2
// and AVX-512).
static constexpr V EXPONENTIAL[] = {
    each((real)1.44269504088896338700), each(WHOLE),
    each(DOUBLE ? (real)6.93147180369123816490e-01 : (real)0.693359375f),  // log(2), whose products with n are exact...
    each(DOUBLE ? (real)1.90821492927058770002e-10 : (real)-2.12194440e-4f),  // ...and its rest
    each(1)};
static const int TERMS = DOUBLE ? 10 : 5;
static constexpr V EXPONENTIAL_SERIES[] = {
    each(DOUBLE ? (real)0x1.000000000000ap-1 : (real)0.49999993447796487),
    each(DOUBLE ? (real)0x1.55555555554fap-3 : (real)0.16666520631709497),
    each(DOUBLE ? (real)0x1.555555555087cp-5 : (real)0.041668388045313996),
    each(DOUBLE ? (real)0x1.1111111127be5p-7 : (real)0.00836871687972814),
    each(DOUBLE ? (real)0x1.6c16c1842a11dp-10 : (real)0.0013814598646664034),
    each((real)0x1.a01a012a57b51p-13), each((real)0x1.a0199a0c677acp-16), each((real)0x1.71df2552390c2p-19),
    each((real)0x1.28ad72cc30daap-22), each((real)0x1.ad7f6f0799ee2p-26)};
static const int MANTISSA = DOUBLE ? 52 : 23, BIAS = DOUBLE ? 1023 : 127;
static constexpr V LIMITS[] = {each(DOUBLE ? (real)708 : (real)86)};

// 2ⁿ of a whole number that an exponent can hold
static inline V power_of_two(V n) { return (V)(((M)(n + WHOLE) - (M)splat(WHOLE) + BIAS) << MANTISSA); }

// eʳ, and n + WHOLE: in its last bits stands n.
static inline V reduced_exponential(V x, V& turned) {
    const V *c = in_memory(EXPONENTIAL), *q = in_memory(EXPONENTIAL_SERIES);
    turned = x * c[0] + c[1];
    const V n = turned - c[1], r = (x - n * c[2]) - n * c[3], z = r * r;
    const int odd = TERMS / 2 * 2 - 1, even = (TERMS - 1) / 2 * 2;  // the highest powers
    V y = q[even], w = q[odd];
    UNROLLED
    for (int k = even - 2; k >= 0; k -= 2) y = y * z + q[k];
    UNROLLED
    for (int k = odd - 2; k >= 0; k -= 2) w = w * z + q[k];
    return c[4] + (r + z * (y + r * w));
}

// Where 2ⁿ alone may be too small or too large: in two factors.
__attribute__((noinline)) static V far_exponential(V x) {
    const real least = DOUBLE ? (real)-746 : (real)-104, most = DOUBLE ? (real)710 : (real)89;
    V turned;
    const V y = reduced_exponential(x < least ? splat(least) : (x > most ? splat(most) : x), turned);
    const V n = turned - WHOLE, half = ((real)0.5 * n + WHOLE) - WHOLE;
    return y * power_of_two(half) * power_of_two(n - half);
}

// Where it is called once it is put in place, in a loop over the points of a fit for example.
static V exp_(V x) {
    V turned;
    const V y = reduced_exponential(x, turned), near = (V)((M)y + ((M)turned << MANTISSA));
    const M inside = mask_(abs_(x) < in_memory(LIMITS)[0]);
    return __builtin_expect(of_all(inside), true) ? near : (inside ? near : far_exponential(x));
}
