// Hashes of the two-slot tables, the same as in gpu_core/cuckoo.py.
//
//   key ─┬─► high bits of the sum of word * odd factor ──► slot A ─┐
//        └─► the same with other factors ────────────────► slot B ─┴─► both loaded at once; in one of them or nowhere
#pragma once

#include "structs.cuh"

struct Slots {
    u32 first, second;
};

__device__ __forceinline__ Slots slots_of(const PairHash& h, u32 left, u32 right) {
    return {(left * h.a0 + right * h.a1) >> h.shift, (left * h.b0 + right * h.b1) >> h.shift};
}

__device__ __forceinline__ Slots slots_of(const WideHash& h, uint4 key) {
    return {(key.x * h.a0 + key.y * h.a1 + key.z * h.a2 + key.w * h.a3) >> h.shift,
            (key.x * h.b0 + key.y * h.b1 + key.z * h.b2 + key.w * h.b3) >> h.shift};
}

__device__ __forceinline__ u64 hash_word(u64 value, u32 word) { return value * 0x9E3779B97F4A7C15ull + word + 1; }
