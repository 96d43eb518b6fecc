// What the last block of a launch writes for the host, in pinned memory, or for the kernel behind it. The same in NumPy:
// gpu_core/layout.py.
#pragma once

#include "portable.cuh"

struct Completion {
    u64 epoch;
    u32 n_tokens;
    u32 any_flagged;
};

// One thread of the last block, after a fence behind which it sees what all others wrote. The epoch comes last: whoever reads it sees the
// rest, and all that was written before.
__device__ __forceinline__ void tell(Completion* to, u64 epoch, u32 n_tokens, bool any_flagged) {
    volatile Completion* completion = to;
    completion->n_tokens = n_tokens;
    completion->any_flagged = any_flagged;
    __threadfence_system();
    completion->epoch = epoch;
}
