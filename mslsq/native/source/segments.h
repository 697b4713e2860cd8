// Products of pieces of a Jacobian, added up where they belong, without atomic operations: what goes to one place is a
// segment of a sorted list, cut into chunks. A thread adds up a row of the products of one chunk, in the order of the
// list; where a place has several chunks, another kernel adds those up. So the bits of a sum depend on the list alone.

struct Tensor4 {
    const real* first;
    long problem, row, tangent, lane;  // how far numbers lie apart
};

struct Products {
    Tensor4 left, right;                   // J, and J again or the residual
    const long *lanes, *firsts, *seconds;  // of every product: its lane, and where in the tangent its factors begin
    const long *begins, *places;           // of every chunk: its first product (and one end more), and where its sum goes
    real* sums;
    long next;                          // how far those of two problems lie apart
    long chunks, rows, height, stride;  // of a sum its height, and how far its rows lie apart
};

#define EACH_OF(count)                                                                                                 \
    for (long problem = blockIdx.y; problem < problems; problem += gridDim.y)                                          \
        for (long number = (long)blockIdx.x * THREADS + threadIdx.x; number < count; number += (long)gridDim.x * THREADS)

template <int WIDTH> static inline void add_products(const Products& p, const long problems) {
    const long count = p.chunks * p.height;
    EACH_OF(count) {
        const long chunk = number % p.chunks, a = number / p.chunks;  // neighbours have neighbouring chunks
        real sum[WIDTH];
        UNROLLED
        for (int b = 0; b < WIDTH; b++) sum[b] = 0;
        for (long k = p.begins[chunk]; k < p.begins[chunk + 1]; k++) {
            const long lane = p.lanes[k];
            const real* left =
                p.left.first + problem * p.left.problem + lane * p.left.lane + (p.firsts[k] + a) * p.left.tangent;
            const real* right =
                p.right.first + problem * p.right.problem + lane * p.right.lane + p.seconds[k] * p.right.tangent;
            for (long row = 0; row < p.rows; row++, left += p.left.row, right += p.right.row) {
                const real factor = *left;
                UNROLLED
                for (int b = 0; b < WIDTH; b++) sum[b] = sum[b] + factor * right[b * p.right.tangent];
            }
        }
        real* const to = p.sums + problem * p.next + p.places[chunk] + a * p.stride;
        UNROLLED
        for (int b = 0; b < WIDTH; b++) to[b] = sum[b];
    }
}

struct Chunks {
    const long *begins, *places;  // of every sum: its first chunk (and one end more), and where it goes
    real* sums;
    long next;   // how far those of two problems lie apart
    long first;  // where the sum of the first chunk is; the others follow
    long count, height, width, stride;
};

static inline void add_chunks(const Chunks& c, const long problems) {
    const long entries = c.height * c.width, count = c.count * entries;
    EACH_OF(count) {
        const long place = number / entries, entry = number % entries;
        const long within = entry / c.width * c.stride + entry % c.width;
        real* const sums = c.sums + problem * c.next;
        real sum = 0;
        for (long k = c.begins[place]; k < c.begins[place + 1]; k++)
            sum = sum + sums[c.first + k * c.height * c.stride + within];
        sums[c.places[place] + within] = sum;
    }
}
