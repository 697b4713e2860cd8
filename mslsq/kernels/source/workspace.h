// Memory of a call, at the edge of a line of the cache; that of update matrices is kept for the next call.
#pragma once

#include <memory>
#include <new>

#include "vectors.h"

namespace mslsq {
namespace MSLSQ_TARGET {
namespace {

constexpr std::align_val_t LINE{64};

// Beside a line's edge every store of a register of 64 bytes touches two lines.
struct DeleteAligned {
    void operator()(void* memory) const { ::operator delete[](memory, LINE); }
};

template <class T>
using Numbers = std::unique_ptr<T[], DeleteAligned>;

template <class T>
Numbers<T> numbers(i64 count) {
    return Numbers<T>(static_cast<T*>(::operator new[](sizeof(T) * count, LINE)));
}

// Memory that is given back is new to the process the next time, and the system hands it out page by page: for the 6000
// points of a bundle adjustment that took 28 ms of a factorisation's 38. So a thread keeps this much.
constexpr i64 MOST_KEPT = i64{64} << 20;

// Room for numbers until the next call in this thread, or, where it is too large to be kept, as long as `own` lives.
template <class T>
T* room_for(i64 count, Numbers<T>& own) {
    thread_local Numbers<char> kept;
    thread_local i64 size = 0;
    const i64 bytes = count * i64{sizeof(T)};
    if (bytes > MOST_KEPT) {
        own = numbers<T>(count);
        return own.get();
    }
    if (bytes > size) {
        size = 0;
        kept.reset();
        kept = numbers<char>(bytes);
        size = bytes;
    }
    return reinterpret_cast<T*>(kept.get());
}

}  // namespace
}  // namespace MSLSQ_TARGET
}  // namespace mslsq
