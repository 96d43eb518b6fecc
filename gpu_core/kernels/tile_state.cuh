// What a tile tells those behind it, one word each: as soon as it has seen its own window, whether a run fills it (walk.cuh), and later
// how many tokens it has (emit.cuh).
//
//   epoch of the replay   run   status   tokens
//   34 bits               2     2        26
//
// Here a state is there as soon as it tells of the run, and is counted later; for both it has to be of this replay (look_back.cuh).
#pragma once

#include "look_back.cuh"
#include "structs.cuh"

struct TileStates {
    static constexpr u32 STATUS_AT = 26, RUN_AT = 28, EPOCH_AT = 30;
    volatile u64* states;
    u64 epoch;
    u32 filled;  // what this tile says of the run

    __device__ __forceinline__ u64 state_of(u32 status, u32 tokens) const {
        return epoch << EPOCH_AT | static_cast<u64>(filled << RUN_AT | status << STATUS_AT | tokens);
    }
    __device__ __forceinline__ bool is_there(u64 state) const {
        return state >> EPOCH_AT == (epoch & (~0ull >> EPOCH_AT));
    }
    __device__ __forceinline__ u32 filled_of(u64 state) const { return state >> RUN_AT & 3u; }
    __device__ __forceinline__ u32 status_of(u64 state) const { return state >> STATUS_AT & 3u; }
    __device__ __forceinline__ bool is_counted(u64 state) const {
        return is_there(state) && status_of(state) != UNCOUNTED;
    }
    __device__ __forceinline__ bool is_inclusive(u64 state) const { return status_of(state) == INCLUSIVE; }
    __device__ __forceinline__ u32 count_of(u64 state) const {
        return static_cast<u32>(state) & ((1u << STATUS_AT) - 1);
    }
};
