// The loop over lanes and problems. The last vector overlaps the one before it, so that no lane is computed by other
// code; where there are fewer lanes than a vector holds, the last is repeated in memory of the loop's own.

struct Argument {
    long size;  // numbers of a block
    long lanes;
    long bytes;  // of one number
};

typedef void Block(const char* const* in, char* const* out, const long* step);

template <int INPUTS, int OUTPUTS>
static inline void over_lanes(
    Block* block, const Argument* arguments, long outer, long begin, long end, char* const* data, const long* outer_step,
    const long* step
) {
    enum { ALL = INPUTS + OUTPUTS };
    const long count = end - begin;
    char *at[ALL], *own[ALL];
    long steps[ALL], bytes = 0;
    const bool few = count < N;
    for (int k = 0; k < ALL; k++) {
        const bool copied = few && arguments[k].lanes;
        steps[k] = copied ? N : step[k];
        bytes += copied ? arguments[k].size * N * arguments[k].bytes : 0;
    }
    char* memory = few ? (char*)__builtin_malloc(bytes + 1) : 0;
    for (long problem = 0; problem < outer; problem++) {
        char* next = memory;
        for (int k = 0; k < ALL; k++) {
            const long size = arguments[k].bytes;
            at[k] = own[k] = data[k] + problem * outer_step[k] * size;
            if (!arguments[k].lanes || !data[k]) continue;  // null: nothing of it is read
            own[k] += begin * size;
            if (!few) continue;
            at[k] = next;
            next += arguments[k].size * N * size;
            for (long e = 0; k < INPUTS && e < arguments[k].size; e++)
                for (long i = 0; i < N; i++)
                    __builtin_memcpy(
                        at[k] + (e * N + i) * size, own[k] + (e * step[k] + (i < count ? i : count - 1)) * size, size
                    );
        }
        for (long lane = begin; lane < end; lane += N) {
            const long first = few ? begin : (lane + N <= end ? lane : end - N);
            char* here[ALL];
            for (int k = 0; k < ALL; k++)
                here[k] = few || !arguments[k].lanes ? at[k] : own[k] + (first - begin) * arguments[k].bytes;
            block(here, here + INPUTS, steps);
        }
        for (int k = INPUTS; few && k < ALL; k++)
            for (long e = 0; e < arguments[k].size; e++)
                __builtin_memcpy(
                    own[k] + e * step[k] * arguments[k].bytes, at[k] + e * N * arguments[k].bytes,
                    count * arguments[k].bytes
                );
    }
    if (few) __builtin_free(memory);
}

#define PROGRAM(name, inputs, outputs)                                                                                 \
    extern "C" __attribute__((visibility("default"))) void name(                                                       \
        long outer, long begin, long end, char* const* data, const long* outer_step, const long* step                  \
    ) {                                                                                                                \
        over_lanes<inputs, outputs>(name##_block, name##_arguments, outer, begin, end, data, outer_step, step);        \
    }
