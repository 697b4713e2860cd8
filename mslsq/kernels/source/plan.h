// A plan of Python (OperatorPlan.arrays in mslsq/linear/operator_plan.py) as kernels read it: its integers and its arrays
// of integers, in the order of its fields.
#pragma once

#include <vector>

#include "vectors.h"

namespace mslsq {
namespace MSLSQ_TARGET {

struct Array {
    const i64* data;
    i64 count;

    i64 operator[](i64 k) const { return data[k]; }
};

class PlanReader {
    const i64 *memory, *places, *numbers;

public:
    // `places`: where each array begins in `memory`, and how long it is.
    PlanReader(const i64* memory, const i64* places, const i64* numbers)
        : memory(memory), places(places), numbers(numbers) {}

    i64 number() { return *numbers++; }

    Array array() {
        const Array found{memory + places[0], places[1]};
        places += 2;
        return found;
    }

    // A tuple of plans. Each reads its own fields.
    template <class Part>
    std::vector<Part> parts() {
        std::vector<Part> found;
        for (i64 count = number(); count > 0; count--) found.emplace_back(*this);
        return found;
    }
};

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
