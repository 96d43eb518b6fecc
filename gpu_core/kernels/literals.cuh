// Stage 2: added tokens, found on the raw bytes. Each byte decides for itself: the longest literal that begins here. Where two of
// these share a byte, the first one would have to win; that is left to the CPU. A warp tries all lengths of one candidate at once.
//
//   text      a < | e n d | > b        literals "<|end|>", "<|end"
//   lane      length 1 .. 9            hits at lengths 5 and 7: 7 wins
//   literal   0 1 1 1 1 1 1 1 0
//   start     0 1 0 0 0 0 0 0 0
//   end       0 0 0 0 0 0 0 0 1        the first byte behind it, which sees nothing before itself
#pragma once

#include "window.cuh"

// Slot of the string [position, position + length) in a table of strings; the length of the slot is 0 when it is not there.
__device__ __forceinline__ uint4 find_string(const Shared& sh, const uint4* slots, const u32* pool, const PairHash& h,
                                             u32 position, u32 length) {
    u64 hash = 0;
    for (u32 at = 0; at < length; at += 4)
        hash = hash_word(hash, word_at(sh, position + at) & bits_below((length - at) * 8));
    Slots where = slots_of(h, static_cast<u32>(hash), static_cast<u32>(hash >> 32));
    uint4 first = __ldg(&slots[where.first]), second = __ldg(&slots[where.second]);
    bool in_first = first.z == length && first.x == static_cast<u32>(hash);
    uint4 slot = in_first ? first : second;
    if (slot.z != length || slot.x != static_cast<u32>(hash)) return make_uint4(0, 0, 0, 0);
    for (u32 at = 0; at < length; at += 4) {
        u32 word = word_at(sh, position + at) & bits_below((length - at) * 8);
        if (word != __ldg(&pool[(slot.y + at) >> 2])) return make_uint4(0, 0, 0, 0);
    }
    return slot;
}

// Bytes from a position up to the next border between documents, at most MAX_LITERAL + 1.
__device__ __forceinline__ u32 bytes_to_border(const Shared& sh, u32 position) {
    u32 word = (position + 1) >> 5, unseen = bits_below((position + 1) & 31u), border = WINDOW;
    for (; word < WORDS && word * 32 <= position + MAX_LITERAL; ++word, unseen = 0) {
        u32 bits = sh.document_border[word] & ~unseen;
        if (bits) {
            border = word * 32 + __ffs(bits) - 1;
            break;
        }
    }
    return min(border - position, MAX_LITERAL + 1);
}

// Returns whether one of the bits was set before.
__device__ __forceinline__ bool set_bits(u32* plane, u32 position, u32 length) {
    bool any = false;
    for (u32 at = position; at < position + length;) {
        u32 n = min(32 - (at & 31u), position + length - at);
        u32 bits = bits_below(n) << (at & 31u);
        any |= (atomicOr(&plane[at >> 5], bits) & bits) != 0;
        at += n;
    }
    return any;
}

// The longest literal at a candidate. All lanes of a warp together.
__device__ __forceinline__ void match_candidate(Shared& sh, const Tables& t, const Batch& batch, const Job& job,
                                                int window_start, u32 position) {
    u32 room = min(bytes_to_border(sh, position), t.max_literal);
    uint4 best = make_uint4(0, 0, 0, 0);
    for (u32 length = lane_id() + 1; length <= room; length += 32) {
        uint4 slot = find_string(sh, t.literal_slots, t.pool, t.literal_hash, position, length);
        if (slot.z) best = slot;
    }
    u32 length = __reduce_max_sync(FULL, best.z);
    if (length == 0 || best.z != length) return;
    bool overlaps = set_bits(sh.literal, position, length);
    set_bits(sh.literal_start, position, 1);
    if (position + length < WINDOW) set_bits(sh.literal_end, position + length, 1);
    sh.symbol[position] = best.w & 0x7fffffffu;
    int at = window_start + static_cast<int>(position);
    if (job.is_own(window_start) && (overlaps || best.w >> 31)) flag_document(batch, job, at, LITERAL);
}

// All literals of the window. Ends with a barrier when there was a candidate.
__device__ __forceinline__ void match_literals(Shared& sh, const Tables& t, const Batch& batch, const Job& job,
                                               int window_start) {
    if (!sh.any_candidate) return;
    u32 turn = 0;
    for (u32 word = 0; word < WORDS; ++word) {
        for (u32 rest = sh.candidate[word]; rest; rest &= rest - 1) {
            if (turn++ % N_WARPS != warp_id()) continue;
            match_candidate(sh, t, batch, job, window_start, word * 32 + __ffs(rest) - 1);
        }
    }
    __syncthreads();
}
