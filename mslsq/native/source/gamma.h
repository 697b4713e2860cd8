// The logarithm of the gamma function and its derivatives, of single numbers, in double also for float.

static inline double lgamma_one(double x) { return DOUBLES(lgamma)(x); }

// ψ⁽ᵏ⁾ / k! at the root of ψ, of k = 11 to 1.
static const double NEAR_ITS_ROOT[] = {
    0.010538791616612175, -0.01542476590494896, 0.022597648232218104, -0.03316112647484736, 0.04880428816414311, -0.07219956125645471, 0.10782405069126237, -0.16394270544240652, 0.258499760955651, -0.4427631689835921, 0.9676722454476212};
// ψ: by its recurrence to 10 and beyond, where its asymptotic series has the digits of double (Abramowitz and Stegun, 6.3.18);
// below zero by reflection (6.3.7), near its root by the series there. Poles as PyTorch has them: infinite at ±0, NaN at negative whole numbers.
static inline double digamma_one(double x) {
    if (x == 0) return -1 / x;
    double reflected = 0;
    if (x < 0) {
        const double rest = x - DOUBLES(nearbyint)(x);
        if (!(x > -1e300) || rest == 0) return DOUBLES(nan)("");
        reflected = -3.14159265358979323846 / DOUBLES(tan)(3.14159265358979323846 * rest);
        x = 1 - x;
    }
    if (x == DOUBLES(huge_val)()) return x;
    const double distance = (x - 1.4616321449683622) - 9.549995429965697e-17;
    if (DOUBLES(fabs)(distance) < 0.06 && reflected == 0) {
        double y = 0;
        for (int k = 0; k < 11; k++) y = (y + NEAR_ITS_ROOT[k]) * distance;
        return y;
    }
    double sum = 0;
    for (; x < 10; x += 1) sum -= 1 / x;
    const double z = 1 / (x * x);
    const double series = z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z * (1.0 / 132 - z * (691.0 / 32760 - z / 12))))));
    return sum + DOUBLES(log)(x) - 0.5 / x - series + reflected;
}

// q⁻ˢ; a small whole power, as those of ψ', by products, which take a tenth of the time.
static inline double falling_power(double q, double s) {
    if (s > 8 || s != (int)s) return DOUBLES(pow)(q, -s);
    double power = q;
    for (int k = 1; k < (int)s; k++) power *= q;
    return 1 / power;
}
// Hurwitz' ζ(s, q) = Σ (q + k)⁻ˢ of s > 1 and q > 0: twelve terms, the rest by the formula of Euler and Maclaurin, whose
// coefficients are Bernoulli's B₂ₖ / (2k)!.
static inline double zeta_of_positive(double s, double q) {
    const double coefficients[] = {
        8.3333333333333333e-2, -1.3888888888888889e-3, 3.3068783068783069e-5, -8.2671957671957672e-7, 2.0876756987868099e-8,
        -5.2841901386874932e-10, 1.3382536530684679e-11, -3.3896802963225829e-13, 8.5860620562778446e-15,
        -2.1748686985580619e-16};
    double sum = 0;
    for (int k = 0; k < 12 && q < 12; k++, q += 1) sum += falling_power(q, s);
    double power = falling_power(q, s), factor = s;
    sum += falling_power(q, s - 1) / (s - 1) + 0.5 * power;
    if (power == 0) return sum;
    power /= q;
    const double square = 1 / (q * q);
    for (int k = 0; k < 10; k++) {
        sum += coefficients[k] * factor * power;
        factor *= (s + 2 * k + 1) * (s + 2 * k + 2);
        power *= square;
    }
    return sum;
}
// Below zero, of whole s: the terms below zero are those of another such sum. Poles are infinite, as in PyTorch.
static inline double zeta_one(double s, double q) {
    if (s != s || q != q || s < 1 || q == -DOUBLES(huge_val)()) return DOUBLES(nan)("");
    if (s == 1) return DOUBLES(huge_val)();
    if (q > 0) return zeta_of_positive(s, q);
    const double part = q - DOUBLES(floor)(q), rest = DOUBLES(ceil)(q) - q;
    if (part == 0) return DOUBLES(huge_val)();
    if (s != DOUBLES(floor)(s)) return DOUBLES(nan)("");
    const double sign = DOUBLES(fmod)(s, 2) == 0 ? 1 : -1;
    return zeta_of_positive(s, part) + sign * (zeta_of_positive(s, rest) - zeta_of_positive(s, 1 - q));
}

// ψ⁽ⁿ⁾(x) = (−1)ⁿ⁺¹ n! ζ(n + 1, x)
static inline double polygamma_one(double n, double x) {
    if (n == 0) return digamma_one(x);
    double factorial = DOUBLES(fmod)(n, 2) == 1 ? 1 : -1;
    for (int k = 2; k <= n; k++) factorial *= k;
    return factorial * zeta_one(n + 1, x);
}

EACH_ONE(lgamma)
EACH_ONE(digamma)
EACH_TWO(zeta)
EACH_TWO(polygamma)
