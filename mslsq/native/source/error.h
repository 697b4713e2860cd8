// Functions made of the error function, of single numbers, in double also for float.

static const double ROOT_OF_PI = 1.77245385090551602730, ROOT_OF_HALF = 0.70710678118654752440;

// exp(x²) erfc(x), where that does not lose what is small; from 26 on its asymptotic series.
static inline double erfcx_one(double x) {
    if (x < 26) return DOUBLES(exp)(x * x) * DOUBLES(erfc)(x);
    const double z = 1 / (2 * x * x);
    return (1 - z * (1 - 3 * z * (1 - 5 * z * (1 - 7 * z * (1 - 9 * z))))) / (x * ROOT_OF_PI);
}

// log Φ(x)
static inline double log_ndtr_one(double x) {
    const double t = x * ROOT_OF_HALF;
    if (x < -1) return DOUBLES(log)(0.5 * erfcx_one(-t)) - t * t;
    return DOUBLES(log1p)(-0.5 * DOUBLES(erfc)(t));
}

// The y with erfc(y) = p, of p between 0 and 0.75: Newton's steps for the logarithms, from an asymptotic start.
static inline double inverse_of_erfc(double p) {
    if (p == 0) return DOUBLES(huge_val)();
    const double logarithm = DOUBLES(log)(p);
    double start = -logarithm - 0.5 * DOUBLES(log)(-3.14159265358979323846 * logarithm);
    double y = DOUBLES(sqrt)(start > 0.04 ? start : 0.04);
    for (int k = 0; k < 5; k++) {
        const double scaled = erfcx_one(y);
        y += (DOUBLES(log)(scaled) - y * y - logarithm) * scaled * (0.5 * ROOT_OF_PI);
    }
    return y;
}
// Within ±1/2 from the polynomial of Giles ("Approximating the erfinv function", 2012) by Newton's steps.
static inline double erfinv_one(double x) {
    const double size = DOUBLES(fabs)(x);
    if (!(size <= 1)) return DOUBLES(nan)("");
    if (size > 0.5) return DOUBLES(copysign)(inverse_of_erfc(1 - size), x);
    const double coefficients[] = {
        3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087, -0.00125372503, -0.00417768164, 0.246640727,
        1.50140941};
    const double w = -DOUBLES(log1p)(-x * x) - 2.5;
    double y = 2.81022636e-08;
    for (int k = 0; k < 8; k++) y = coefficients[k] + y * w;
    y *= x;
    for (int k = 0; k < 2; k++) y -= (DOUBLES(erf)(y) - x) * (0.5 * ROOT_OF_PI) * DOUBLES(exp)(y * y);
    return y;
}
// Φ⁻¹(p)
static inline double ndtri_one(double p) {
    if (!(p >= 0 && p <= 1)) return DOUBLES(nan)("");
    if (p < 0.25) return -inverse_of_erfc(2 * p) / ROOT_OF_HALF;
    if (p > 0.75) return inverse_of_erfc(2 * (1 - p)) / ROOT_OF_HALF;
    return erfinv_one(2 * p - 1) / ROOT_OF_HALF;
}

EACH_ONE(erfcx)
EACH_ONE(log_ndtr)
EACH_ONE(erfinv)
EACH_ONE(ndtri)
