// Which of the instruction sets that the library was compiled for is the best that this processor has, and of which
// sources the library was made.

#if defined(__x86_64__) || defined(_M_X64)
#include <cpuid.h>
#endif

#define MSLSQ_VISIBLE extern "C" __attribute__((visibility("default")))

#if defined(MSLSQ_HAS_avx2) || defined(MSLSQ_HAS_avx512)
// Asked of the processor itself: __builtin_cpu_supports is always false with Zig's runtime (0.17).
struct Processor {
    unsigned features = 0;  // leaf 1, ecx
    unsigned extended = 0;  // leaf 7, ebx
    unsigned saved = 0;     // registers that the system saves: XCR0

    Processor() {
        unsigned a, b, c, d;
        if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & 1u << 27)) return;  // no OSXSAVE: the system saves nothing wide
        features = c;
        if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) extended = b;
        __asm__("xgetbv" : "=a"(saved), "=d"(d) : "c"(0));
    }

    bool has(unsigned bits, unsigned registers) const {
        const unsigned fma = 1u << 12, bmi2 = 1u << 8;
        bits |= bmi2;
        return (features & fma) && (extended & bits) == bits && (saved & registers) == registers;
    }
};
#endif

MSLSQ_VISIBLE const char* mslsq_target() {
#ifdef MSLSQ_HAS_avx512
    // F, DQ, CD, BW, VL; the registers of SSE and AVX, the masks, both halves of what is new
    if (Processor().has(1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31, 0xe6)) return "avx512";
#endif
#ifdef MSLSQ_HAS_avx2
    if (Processor().has(1u << 5, 0x6)) return "avx2";
#endif
#ifdef __aarch64__
    return "neon";
#else
    return "baseline";
#endif
}

MSLSQ_VISIBLE const char* mslsq_sources() { return MSLSQ_SOURCES; }
