// Tiles of 1,024 ids, of which each becomes some bytes: where these begin, and how they get to memory in whole 16-byte items.
//
//   ids       3  7  9 │ 7       each thread has four that follow each other
//   length    2  5  0   5
//   at        0  2  7   7       counted from the tile's first byte; the tile has 12
#pragma once

#include "look_back.cuh"

constexpr u32 THREADS = 256, N_WARPS = THREADS / 32;
constexpr u32 IDS_PER_THREAD = 4, TILE_IDS = THREADS * IDS_PER_THREAD;

// What a block shares of its tile.
struct Tile {
    u32 offset[TILE_IDS];  // of the first byte of each id in the tile's bytes
    u32 warp_total[N_WARPS];
};

// Bytes of a thread's ids, none for those behind the last one.
struct Spans {
    u32 length[IDS_PER_THREAD], at[IDS_PER_THREAD];
};

// Bytes of the tile; `offset` and `at` count from the first one. Has a barrier in it; another one is due before `offset` is read.
__device__ __forceinline__ u32 add_up(Tile& tile, Spans& spans) {
    u32 own = 0;
#pragma unroll
    for (u32 k = 0; k < IDS_PER_THREAD; ++k) {
        spans.at[k] = own;
        own += spans.length[k];
    }
    u32 sum = warp_inclusive_sum(own);
    if (lane_id() == 31) tile.warp_total[warp_id()] = sum;
    __syncthreads();
    u32 before = sum - own, total = 0;
    for (u32 warp = 0; warp < N_WARPS; ++warp) {
        if (warp < warp_id()) before += tile.warp_total[warp];
        total += tile.warp_total[warp];
    }
#pragma unroll
    for (u32 k = 0; k < IDS_PER_THREAD; ++k) {
        spans.at[k] += before;
        tile.offset[threadIdx.x * IDS_PER_THREAD + k] = spans.at[k];
    }
    return total;
}

// Writes the bytes [begin, end) of a stage, whose first one is number `first` of all bytes: whole items, and single bytes at the borders,
// where the rest of an item is another tile's.
template <u32 ITEMS>
__device__ __forceinline__ void write_stage(const uint4 (&stage)[ITEMS], u8* bytes, u32 first, u32 begin, u32 end) {
    const u8* staged = reinterpret_cast<const u8*>(stage);
    for (u32 item = threadIdx.x; item < ITEMS; item += THREADS) {
        const u32 at = first + item * 16;
        if (at >= end) break;
        if (at >= begin && at + 16 <= end) {
            reinterpret_cast<uint4*>(bytes)[at / 16] = stage[item];
        } else if (at + 16 > begin) {
            for (u32 to = max(at, begin); to < min(at + 16, end); ++to) bytes[to] = staged[to - first];
        }
    }
}
