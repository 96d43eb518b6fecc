// Hashes of the two-slot tables, the same as in gpu_core/cuckoo.py.
//
//   key ──hash──► 64 bits ──► slot A ─┐
//                        └──► slot B ─┴─► both are loaded at once; the key is in one of them or nowhere
#pragma once

#include "structs.cuh"

struct Slots {
    u32 first, second;
};

__device__ __forceinline__ Slots slots_of(u64 hash, u32 mask) {
    u64 mixed = hash * 0x9E3779B97F4A7C15ull;
    u64 again = (mixed ^ (mixed >> 29)) * 0xC2B2AE3D27D4EB4Full;
    return {static_cast<u32>(mixed >> 32) & mask, static_cast<u32>(again >> 32) & mask};
}

__device__ __forceinline__ u64 hash_key(uint4 key, u32 seed) {
    u32 a = key.x + seed * 0x9E3779B1u, b = key.y + seed * 0x85EBCA77u;
    u32 c = key.z + seed * 0xC2B2AE3Du, d = key.w + seed * 0x27D4EB2Fu;
    return static_cast<u64>(a) * b + static_cast<u64>(c) * d;
}

__device__ __forceinline__ u64 hash_pair(u32 left, u32 right, u32 seed) {
    return (static_cast<u64>(left) << 32 | right) ^ (static_cast<u64>(seed) * 0x85EBCA77ull);
}

__device__ __forceinline__ u64 hash_word(u64 value, u32 word) { return value * 0x9E3779B97F4A7C15ull + word + 1; }
