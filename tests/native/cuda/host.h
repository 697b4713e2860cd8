// CUDA C for the compiler of a processor: the threads of a grid are run one after the other.

#include <math.h>

#define __global__
#define __launch_bounds__(threads)

struct Place {
    unsigned x, y;
};
static thread_local Place blockIdx, gridDim, threadIdx;

template <class Kernel> static void over_grid(unsigned width, unsigned height, unsigned threads, Kernel kernel) {
    gridDim = {width, height};
    for (blockIdx.y = 0; blockIdx.y < height; blockIdx.y++)
        for (blockIdx.x = 0; blockIdx.x < width; blockIdx.x++)
            for (threadIdx.x = 0; threadIdx.x < threads; threadIdx.x++) kernel();
}
