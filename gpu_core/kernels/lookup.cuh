// Stage 4: whole pre-tokens in the vocabulary, a thread for each. A hit is its only token; a miss joins a list by length.
//
//   pre-token   _the     slot  5f 74 68 65 | 0 | 0 | id << 4 | 4      its bytes in three words, and what it is
#pragma once

#include "merge_long.cuh"

// Lists of misses by their largest length. The first two share an array from both ends, as do the next two.
enum MissList : u32 { MISS_8, MISS_16, MISS_32, MISS_64, MISS_LONG };

__device__ __forceinline__ u16& miss_at(Shared& sh, u32 list, u32 n) {
    if (list == MISS_LONG) return sh.long_miss[n];
    u16* array = list < MISS_32 ? sh.small_miss : sh.large_miss;
    u32 size = list < MISS_32 ? sizeof(sh.small_miss) / 2 : sizeof(sh.large_miss) / 2;
    return array[list & 1u ? size - 1 - n : n];
}

__device__ __forceinline__ void add_miss(Shared& sh, u32 index, u32 length) {
    u32 list = length <= 8    ? MISS_8
               : length <= 16 ? MISS_16
               : length <= 32 ? MISS_32
               : length <= 64 ? MISS_64
                              : MISS_LONG;
    miss_at(sh, list, atomicAdd(&sh.n_miss[list], 1u)) = static_cast<u16>(index);
}

constexpr u32 SHORT_KEY = 12;

// Id of an entry of up to 12 bytes; false when it is none.
__device__ __forceinline__ bool find_short(const Shared& sh, const Tables& t, u32 position, u32 length, u32& id) {
    uint4 key;
    key.x = word_at(sh, position) & bits_below(length * 8);
    key.y = length > 4 ? word_at(sh, position + 4) & bits_below((length - 4) * 8) : 0;
    key.z = length > 8 ? word_at(sh, position + 8) & bits_below((length - 8) * 8) : 0;
    key.w = length;
    Slots where = slots_of(t.short_hash, key);
    uint4 first = __ldg(&t.short_slots[where.first]), second = __ldg(&t.short_slots[where.second]);
    bool is_first = first.x == key.x && first.y == key.y && first.z == key.z && (first.w & 15u) == length;
    bool is_second = second.x == key.x && second.y == key.y && second.z == key.z && (second.w & 15u) == length;
    id = (is_first ? first.w : second.w) >> 4;
    return is_first || is_second;
}

__device__ __forceinline__ void look_up(Shared& sh, const Tables& t, const Batch& batch, const Job& job, u32 index) {
    u32 position = sh.pretoken[index], length = sh.pretoken[index + 1] - position, id = 0;
    if (bit_at(sh.literal_start, position)) return;
    if (length > MAX_PRETOKEN) {
        flag_document(batch, job, job.tile_start + position - HALO_LEFT, TOO_LONG);
        sh.symbol[position] = 0;
        return;
    }
    bool found;
    if (length <= SHORT_KEY) {
        found = find_short(sh, t, position, length, id);
    } else {
        uint4 slot = find_string(sh, t.long_slots, t.pool, t.long_hash, position, length);
        found = slot.z != 0;
        id = slot.w;
    }
    if (found) {
        sh.symbol[position] = id;
    } else if (length == 1) {
        sh.symbol[position] = byte_id(sh, t, position);
    } else {
        add_miss(sh, index, length);
    }
}

template <u32 G, u32 N>
__device__ __forceinline__ void merge_listed(Shared& sh, const Tables& t, u32 list, u32 item) {
    u32 n = item * (32 / G) + lane_id() / G;
    u32 position = 0, length = 0;
    if (n < sh.n_miss[list]) {
        u32 index = miss_at(sh, list, n);
        position = sh.pretoken[index];
        length = sh.pretoken[index + 1] - position;
    }
    merge_groups<G, N>(sh, t, position, length);
}

// Warps take what is left to merge, the longest first.
__device__ __forceinline__ void merge_misses(Shared& sh, const Tables& t) {
    u32 end_long = sh.n_miss[MISS_LONG], end_64 = end_long + sh.n_miss[MISS_64];
    u32 end_32 = end_64 + (sh.n_miss[MISS_32] + 1) / 2, end_16 = end_32 + (sh.n_miss[MISS_16] + 1) / 2;
    u32 end_8 = end_16 + (sh.n_miss[MISS_8] + 3) / 4;
    while (true) {
        u32 item = lane_id() == 0 ? atomicAdd(&sh.next_work, 1u) : 0;
        item = __shfl_sync(FULL, item, 0);
        if (item < end_long) {
            u32 index = miss_at(sh, MISS_LONG, item), position = sh.pretoken[index];
            merge_long(sh, t, position, sh.pretoken[index + 1] - position);
        } else if (item < end_64) {
            merge_listed<32, 2>(sh, t, MISS_64, item - end_long);
        } else if (item < end_32) {
            merge_listed<16, 2>(sh, t, MISS_32, item - end_64);
        } else if (item < end_16) {
            merge_listed<16, 1>(sh, t, MISS_16, item - end_32);
        } else if (item < end_8) {
            merge_listed<8, 1>(sh, t, MISS_8, item - end_16);
        } else {
            return;
        }
    }
}
