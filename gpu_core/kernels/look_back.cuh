// Decoupled look-back: a block knows how much it writes, and has to know where that begins. It publishes its own count in a state word,
// adds up what the blocks before it published, and publishes the sum.
//
//   block          0     1     2     3
//   count          200   180   210   190
//   state          200i  180a  210a  ...      a: this block only, i: all up to this block
//   block 3 reads  2: 210a, 1: 180a, 0: 200i  -> what it writes begins at number 590
//
// A state holds the epoch of its launch, so nothing is cleared between launches: an old state is a state that is not there yet. No block
// waits for one with a higher number.
#pragma once

#include "portable.cuh"

// What is counted in a state: nothing yet, this block only, all up to this block.
enum Status : u32 { UNCOUNTED = 0, PARTIAL = 1, INCLUSIVE = 2 };

// States that say nothing but counts, which may have 32 bits.
//
//   epoch of the launch   status   count
//   30 bits               2        32
struct Counts {
    static constexpr u32 STATUS_AT = 32, EPOCH_AT = 34;
    volatile u64* states;
    u64 epoch;

    __device__ __forceinline__ u64 state_of(u32 status, u32 count) const {
        return epoch << EPOCH_AT | static_cast<u64>(status) << STATUS_AT | count;
    }
    __device__ __forceinline__ bool is_counted(u64 state) const {
        return state >> EPOCH_AT == (epoch & (~0ull >> EPOCH_AT));
    }
    __device__ __forceinline__ bool is_inclusive(u64 state) const { return (state >> STATUS_AT & 3u) == INCLUSIVE; }
    __device__ __forceinline__ u32 count_of(u64 state) const { return static_cast<u32>(state); }
};

// The count of all blocks before block number `number`, `own` being that of the block. By one warp. `States` reads and makes the words:
// see `Counts`.
template <class States>
__device__ __forceinline__ u32 look_back(const States& of, u32 number, u32 own) {
    if (lane_id() == 0) of.states[number] = of.state_of(number ? PARTIAL : INCLUSIVE, own);
    u32 before = 0;
    for (int nearest = static_cast<int>(number) - 1; nearest >= 0; nearest -= 32) {
        const int other = nearest - static_cast<int>(lane_id());
        u64 state;
        do {
            state = other >= 0 ? of.states[other] : of.state_of(INCLUSIVE, 0);
        } while (__any_sync(FULL, !of.is_counted(state)));
        const u32 inclusive = __ballot_sync(FULL, of.is_inclusive(state));
        const u32 used = inclusive ? __ffs(inclusive) - 1 : 31;
        before += warp_sum(lane_id() <= used ? of.count_of(state) : 0);
        if (inclusive) break;
    }
    if (lane_id() == 0 && number) of.states[number] = of.state_of(INCLUSIVE, before + own);
    return before;
}
