// Modified Bessel functions of the first kind, of vectors, and Bessel functions by the C library. Of I₀ and I₁ there are
// Chebyshev series, the coefficient of the highest degree first, computed with 40 digits: of e⁻ˣ I₀(x) and e⁻ˣ I₁(x)/x in
// x/4 − 1 up to 8, of √x e⁻ˣ Iₙ(x) in 16/x − 1 beyond.

static const real I0_NEAR[] = {
    (real)-4.4153416464793394e-18, (real)3.3307945188222381e-17, (real)-2.4312798465479547e-16,
    (real)1.715391285555133e-15, (real)-1.1685332877993452e-14, (real)7.6761854986049356e-14,
    (real)-4.8564467831119295e-13, (real)2.9550526631296398e-12, (real)-1.7268262914415557e-11,
    (real)9.6758090353732369e-11, (real)-5.1897956016352629e-10, (real)2.6598237246823867e-9,
    (real)-1.300025009986248e-8, (real)6.0469950225419189e-8, (real)-2.6707938539406117e-7,
    (real)1.1173875391201037e-6, (real)-4.4167383584587506e-6, (real)1.6448448070728897e-5,
    (real)-5.7541950100821037e-5, (real)0.00018850288509584166, (real)-0.00057637557453858237,
    (real)0.0016394756169413358, (real)-0.0043243099950505759, (real)0.010546460394594998,
    (real)-0.023737414805899469, (real)0.049305284239670708, (real)-0.094901097048047644,
    (real)0.17162090152220878, (real)-0.3046826723431984, (real)0.33839763720473804};
static const real I0_FAR[] = {
    (real)-7.233180487874754e-18, (real)-4.8305044859441821e-18, (real)4.46562142029676e-17,
    (real)3.4612228676974611e-17, (real)-2.8276239805165835e-16, (real)-3.4254856196772191e-16,
    (real)1.7725601330565264e-15, (real)3.8116806693526224e-15, (real)-9.5548466988283076e-15,
    (real)-4.1505693472872221e-14, (real)1.5400862175214098e-14, (real)3.8527783827421427e-13,
    (real)7.1801244513836662e-13, (real)-1.7941785315068061e-12, (real)-1.3215811840447713e-11,
    (real)-3.1499165279632414e-11, (real)1.1889147107846438e-11, (real)4.9406023882249696e-10,
    (real)3.3962320257083863e-9, (real)2.2666689904981781e-8, (real)2.0489185894690637e-7,
    (real)2.8913705208347565e-6, (real)6.889758346916824e-5, (real)0.0033691164782556941,
    (real)0.40224520550705442};
static const real I1_NEAR[] = {
    (real)2.7779141127610464e-18, (real)-2.1114212143581661e-17, (real)1.5536319577362005e-16,
    (real)-1.1055969477353863e-15, (real)7.6006842947354069e-15, (real)-5.0421855047279117e-14,
    (real)3.2237933659455747e-13, (real)-1.9839743977649437e-12, (real)1.1736186298890902e-11,
    (real)-6.6634897235020277e-11, (real)3.625590281552117e-10, (real)-1.8872497517228293e-9,
    (real)9.3815373864957718e-9, (real)-4.4450591287963281e-8, (real)2.0032947535521353e-7,
    (real)-8.5687202646954547e-7, (real)3.4702513081376785e-6, (real)-1.3273163656039436e-5,
    (real)4.7815651075500542e-5, (real)-0.00016176081582589675, (real)0.00051228595616857577,
    (real)-0.0015135724506312531, (real)0.0041564229443128882, (real)-0.010564084894626198,
    (real)0.024726449030626517, (real)-0.052945981208094991, (real)0.1026436586898471,
    (real)-0.17641651835783406, (real)0.12629359322181683};
static const real I1_FAR[] = {
    (real)7.5172963108421048e-18, (real)4.4143483230717079e-18, (real)-4.6503053684893583e-17,
    (real)-3.209525921993424e-17, (real)2.9626289976459501e-16, (real)3.3082023109209283e-16,
    (real)-1.8803547755107824e-15, (real)-3.8144030724370078e-15, (real)1.0420276984128803e-14,
    (real)4.2724400167119514e-14, (real)-2.1015418427726643e-14, (real)-4.0835511110921973e-13,
    (real)-7.1985517762459085e-13, (real)2.0356285441470895e-12, (real)1.4125807436613781e-11,
    (real)3.2526035830154882e-11, (real)-1.8974958123505412e-11, (real)-5.5897434621965838e-10,
    (real)-3.835380385964237e-9, (real)-2.6314688468895195e-8, (real)-2.5122362378702089e-7,
    (real)-3.8825648088776904e-6, (real)-0.00011058893876262372, (real)-0.0097610974913614684,
    (real)0.38928811750914006};

// Clenshaw's recurrence.
template <int COUNT> static inline V chebyshev(V x, const real (&coefficients)[COUNT]) {
    const V twice = x + x;
    V after = splat(0), y = splat(coefficients[0]);
    for (int k = 1; k < COUNT - 1; k++) {
        const V next = twice * y - after + coefficients[k];
        after = y;
        y = next;
    }
    return x * y - after + coefficients[COUNT - 1];
}
static inline V bessel_i0e_(V x) {
    const V size = abs_(x);
    const V near = chebyshev((real)0.25 * size - 1, I0_NEAR), far = chebyshev(16 / size - 1, I0_FAR) / sqrt_(size);
    return select_(mask_(size <= 8), near, far);
}
static inline V bessel_i1e_(V x) {
    const V size = abs_(x);
    const V near = size * chebyshev((real)0.25 * size - 1, I1_NEAR), far = chebyshev(16 / size - 1, I1_FAR) / sqrt_(size);
    return copysign_(select_(mask_(size <= 8), near, far), x);
}
// e^|x| in two factors: it overflows before Iₙ does.
static inline V unscaled(V x, V scaled) {
    const V size = abs_(x), root = exp_((real)0.5 * size);
    return select_(mask_(size == (real)__builtin_inf()), x * x * copysign_(splat(1), scaled), root * scaled * root);
}
SEPARATE V bessel_i0_(V x) { return unscaled(x, bessel_i0e_(x)); }
SEPARATE V bessel_i1_(V x) { return unscaled(x, bessel_i1e_(x)); }

static inline double bessel_j0_one(double x) { return DOUBLES(j0)(x); }
static inline double bessel_j1_one(double x) { return DOUBLES(j1)(x); }
static inline double bessel_y0_one(double x) { return DOUBLES(y0)(x); }
static inline double bessel_y1_one(double x) { return DOUBLES(y1)(x); }
EACH_ONE(bessel_j0)
EACH_ONE(bessel_j1)
EACH_ONE(bessel_y0)
EACH_ONE(bessel_y1)
