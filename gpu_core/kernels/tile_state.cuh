// What a tile tells those behind it, one word each: as soon as it has seen its own window, whether a run fills it (walk.cuh), and later
// how many tokens it has (emit.cuh).
//
//   epoch of the replay   run   status   tokens
//   34 bits               2     2        26
//
// A state holds the replay's epoch, so nothing is cleared between replays: an old state is a state that is not there yet.
#pragma once

#include "structs.cuh"

constexpr u32 STATUS_SHIFT = 26, RUN_SHIFT = 28, STATE_EPOCH_SHIFT = 30;
enum Status : u32 {
    UNCOUNTED = 0,
    PARTIAL = 1,
    INCLUSIVE = 2
};  // tokens: none yet, of this tile only, of all up to this tile

__device__ __forceinline__ u64 tile_state(u64 epoch, u32 filled, u32 status, u32 value) {
    return epoch << STATE_EPOCH_SHIFT | static_cast<u64>(filled << RUN_SHIFT | status << STATUS_SHIFT | value);
}

__device__ __forceinline__ bool is_of(u64 state, u64 epoch) {
    return state >> STATE_EPOCH_SHIFT == (epoch & (~0ull >> STATE_EPOCH_SHIFT));
}
__device__ __forceinline__ u32 filled_of(u64 state) { return state >> RUN_SHIFT & 3u; }
__device__ __forceinline__ u32 status_of(u64 state) { return state >> STATUS_SHIFT & 3u; }
__device__ __forceinline__ u32 tokens_of(u64 state) { return static_cast<u32>(state) & ((1u << STATUS_SHIFT) - 1); }
