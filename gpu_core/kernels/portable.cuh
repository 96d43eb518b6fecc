// What the kernels may use: CUDA's own intrinsics on a device, the shim's when g++ compiles the same source on a host.
// Rule for all kernels: a warp stays together. Every warp intrinsic is reached by all 32 lanes, with the full mask.
#pragma once

#ifdef SIDETOK_SHIM
#include "shim.hpp"
#endif

using u8 = unsigned char;
using u16 = unsigned short;
using u32 = unsigned int;
using u64 = unsigned long long;

constexpr u32 FULL = 0xffffffffu;

__device__ __forceinline__ u32 lane_id() { return threadIdx.x & 31u; }
__device__ __forceinline__ u32 warp_id() { return threadIdx.x >> 5; }

// Bits below a position in a word; all bits for 32 and above.
__device__ __forceinline__ u32 bits_below(u32 n) { return n >= 32 ? FULL : (1u << n) - 1u; }

// Position of the highest set bit; the word must not be 0.
__device__ __forceinline__ u32 highest_bit(u32 word) { return 31u - __clz(word); }

__device__ __forceinline__ u32 warp_min(u32 value) { return __reduce_min_sync(FULL, value); }
__device__ __forceinline__ u32 warp_sum(u32 value) { return __reduce_add_sync(FULL, value); }

// Sum over the lanes up to and with this one.
__device__ __forceinline__ u32 warp_inclusive_sum(u32 value) {
    for (u32 step = 1; step < 32; step *= 2) {
        u32 other = __shfl_up_sync(FULL, value, step);
        if (lane_id() >= step) value += other;
    }
    return value;
}
