// Where a sorted list reaches a value.
#pragma once

#include "portable.cuh"

// First of `n + 1` rising starts that is at or behind a position; all lanes of a warp together, 32 probes at a time.
__device__ __forceinline__ u32 first_from(const u32* starts, u32 n, u32 position) {
    u32 low = 0, high = n + 1;  // the answer lies in [low, high]
    while (low < high) {
        u32 step = (high - low + 31) / 32;
        u32 probe = low + lane_id() * step;
        bool behind = probe >= high || starts[probe] >= position;
        u32 mask = __ballot_sync(FULL, behind);
        u32 first = mask ? __ffs(mask) - 1 : 32;
        high = min(high, low + first * step);
        low = first == 0 ? high : low + (first - 1) * step + 1;
    }
    return low;
}
