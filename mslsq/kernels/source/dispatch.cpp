// Which of the instruction sets that the library was compiled for is the best that this processor has, and of which
// sources the library was made.

#define MSLSQ_VISIBLE extern "C" __attribute__((visibility("default")))

MSLSQ_VISIBLE const char* mslsq_target() {
#ifdef MSLSQ_HAS_avx512
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("bmi2") &&
        __builtin_cpu_supports("fma"))
        return "avx512";
#endif
#ifdef MSLSQ_HAS_avx2
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) return "avx2";
#endif
#ifdef __aarch64__
    return "neon";
#else
    return "baseline";
#endif
}

MSLSQ_VISIBLE const char* mslsq_sources() { return MSLSQ_SOURCES; }
