// Small sizes as compile-time numbers: a loop over three unknowns whose length the compiler knows takes a fraction of the
// time of one whose length it does not.
#pragma once

#include "vectors.h"

namespace mslsq {
namespace MSLSQ_TARGET {

template <int N>
struct Known {
    constexpr operator i64() const { return N; }
};

// body(size) with a `Known` size where it is one of those given, else with the number itself.
template <int... Sizes, class Body>
inline void with_size(i64 size, Body body) {
    const bool found = ((size == Sizes && (body(Known<Sizes>()), true)) || ...);
    if (!found) body(size);
}

}  // namespace MSLSQ_TARGET
}  // namespace mslsq
