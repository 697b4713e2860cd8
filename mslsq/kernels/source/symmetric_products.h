// The lower triangle of Y^T Y for a tall Y whose rows lie one after the other, and what is done with it.
#pragma once

#include "small_products.h"

namespace mslsq {
namespace MSLSQ_TARGET {
namespace {

constexpr int ACROSS = 3;  // registers of columns that are summed up together
constexpr int DOWN = most_rows(ACROSS, false) / 4 * 4;  // and rows: 8 x 24 numbers with AVX-512, 4 x 12 with AVX2

constexpr i64 NEAREST = 3000;  // numbers of Y that stay in the first cache: 24 KB

// Sums in whole registers: rows `stride` apart, of which a little more than the lower triangle is formed.
class Triangle {
    struct Part {
        i64 row, column;
        Add add;
    };

    i64 stride;
    std::vector<Part> parts;

public:
    i64 size;

    explicit Triangle(i64 width) : stride(in_registers(width) * WIDE), size(width * stride) {
        for (i64 row = 0; row < width; row += DOWN) {
            const i64 rows = std::min(i64{DOWN}, width - row), registers = in_registers(row + rows);
            const i64 pieces = part_of(registers, ACROSS);
            for (i64 p = 0; p < registers; p += pieces)
                parts.push_back({row, p * WIDE, add_of<false, ACROSS>(rows, std::min(pieces, registers - p))});
        }
    }

    // sums += Y^T Y, (depth, width), the rows of Y `distance` apart, so many at a time as stay in the first cache; numbers
    // up to the next whole register are read, too.
    void add(const double* Y, i64 depth, i64 distance, double* sums) const {
        const i64 most = part_of(depth, std::max(NEAREST / distance, i64{8}));
        for (i64 done = 0; done < depth; done += most) {
            // Two products of half the depth go together where the sums of one are too few.
            const i64 here = std::min(most, depth - done), halves = here % 2 ? 1 : 2, half = here / halves;
            const i64 pairs[] = {0, half * distance | half * distance << 32};
            const Factors of{Y + done * distance, pairs, half, distance, distance};
            for (const Part& part : parts)
                part.add(of, 0, halves, part.row, part.column, sums + part.row * stride + part.column, stride, nullptr);
        }
    }

    // A block of the sums taken off a block of a matrix whose rows are `distance` apart.
    void take_off(const double* sums, i64 row, i64 column, i64 height, i64 width, double* block, i64 distance) const {
        const double* from = sums + row * stride + column;
        for (i64 r = 0; r < height; r++, from += stride, block += distance) {
            i64 c = 0;
            for (; c + WIDE <= width; c += WIDE)
                store_register<WIDE>(block + c, load_register<WIDE>(block + c) - load_register<WIDE>(from + c));
            if (c < width) subtract_front(block + c, load_register<WIDE>(from + c), width - c);
        }
    }
};

}  // namespace
}  // namespace MSLSQ_TARGET
}  // namespace mslsq
