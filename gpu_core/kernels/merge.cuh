// Stage 5: byte-pair merges of the pre-tokens that are no entry. The pair of lowest rank goes first, the leftmost of several. Where the
// table allows it (gpu_core/tables.py), all places of one rule are merged at once: in a chain of equal pairs every second one.
//
//   bytes     b a n a n a        alive 111111    lowest pair: an, at 1 and 3
//   step 1    b an . an . a      alive 110101    lowest pair: an+an, at 1
//   step 2    b anan . . . a     alive 110001    ...
#pragma once

#include "literals.cuh"

constexpr u32 NO_RULE = 0xffffffffu;

// What ranks compare by; bit 0: merge one place at a time.
__device__ __forceinline__ u32 pair_order(const Tables& t, u32 left, u32 right) {
    Slots where = slots_of(hash_pair(left, right, t.merge_seed), t.merge_mask);
    u64 first = __ldg(&t.merge_slots[where.first]), second = __ldg(&t.merge_slots[where.second]);
    u64 wanted = static_cast<u64>(left) << 18 | right;
    if (first >> 28 == wanted) return static_cast<u32>(first) & 0x0fffffffu;
    if (second >> 28 == wanted) return static_cast<u32>(second) & 0x0fffffffu;
    return NO_RULE;
}

__device__ __forceinline__ u32 product_of(const Tables& t, u32 order) {
    return SIDETOK_RANK_IDS ? __ldg(&t.merge_ids[order >> 1]) : order >> 10;
}

__device__ __forceinline__ u32 byte_id(const Shared& sh, const Tables& t, u32 position) {
    return __ldg(&t.byte_ids[byte_at(sh, position)]);
}

// Pre-tokens of up to G bytes, one for each group of G lanes and a symbol for each lane; `length` 0 = the group idles.
template <u32 G>
__device__ __forceinline__ void merge_groups(Shared& sh, const Tables& t, u32 position, u32 length) {
    const u32 i = lane_id() % G, group = lane_id() - i, group_bits = bits_below(G), below = bits_below(i);
    u32 alive = bits_below(length);
    u32 symbol = i < length ? byte_id(sh, t, position + i) : 0;
    u32 next_symbol = __shfl_sync(FULL, symbol, (lane_id() + 1) & 31u);
    u32 order = i + 1 < length ? pair_order(t, symbol, next_symbol) : NO_RULE;
    while (true) {
        u32 lowest = order;
        for (u32 step = G / 2; step; step /= 2) lowest = min(lowest, __shfl_xor_sync(FULL, lowest, step));
        if (!__any_sync(FULL, lowest != NO_RULE)) break;

        bool here = order == lowest && lowest != NO_RULE;
        u32 places = __ballot_sync(FULL, here) >> group & group_bits;
        u32 previous = alive & below ? 1u << highest_bit(alive & below) : 0;
        u32 chain_starts = __ballot_sync(FULL, here && !(places & previous)) >> group & group_bits;
        u32 chain = chain_starts & (below << 1 | 1u);
        bool even = chain && !(__popc(alive & below & ~bits_below(highest_bit(chain))) & 1u);
        bool selected = here && (lowest & 1u ? !(places & below) : even);
        u32 merged = __ballot_sync(FULL, selected) >> group & group_bits;
        u32 dead = __ballot_sync(FULL, (merged & previous) && (alive >> i & 1u)) >> group & group_bits;
        alive &= ~dead;

        if (selected) symbol = product_of(t, lowest);
        u32 later = alive & ~(below << 1 | 1u);
        u32 next = later ? __ffs(later) - 1 : 0;
        next_symbol = __shfl_sync(FULL, symbol, group + next);
        if (!(alive >> i & 1u)) {
            order = NO_RULE;
        } else if (selected || (later && merged >> next & 1u)) {
            order = later ? pair_order(t, symbol, next_symbol) : NO_RULE;
        }
    }
    if (alive >> i & 1u) {
        sh.symbol[position + i] = symbol;
        atomicOr(&sh.token[(position + i) >> 5], 1u << ((position + i) & 31u));
    }
}

// The first symbol behind a position, or `end`.
__device__ __forceinline__ u32 next_alive(const Shared& sh, u32 position, u32 end) {
    u32 at = position + 1, word = at >> 5;
    if (at >= end) return end;
    u32 bits = sh.token[word] & ~bits_below(at & 31u);
    while (!bits && (word + 1) * 32 < end) bits = sh.token[++word];
    return bits ? min(end, word * 32 + __ffs(bits) - 1) : end;
}

__device__ __forceinline__ void find_order(Shared& sh, const Tables& t, u32 position, u32 end) {
    u32 next = next_alive(sh, position, end);
    sh.order[position] = next < end ? pair_order(t, sh.symbol[position], sh.symbol[next]) : NO_RULE;
}

// Merges the places of one rule in a word of 32 bytes, from left to right. All lanes walk, the first one writes.
// `blocked` is the last symbol that was merged away.
__device__ __forceinline__ void merge_places(Shared& sh, u32 word, u32 places, u32 end, u32 product, u32& blocked) {
    for (; places; places &= places - 1) {
        u32 position = word * 32 + __ffs(places) - 1;
        if (position == blocked) continue;
        blocked = next_alive(sh, position, end);
        __syncwarp();
        if (lane_id() == 0) {
            sh.symbol[position] = product;
            sh.order[blocked] = NO_RULE;
            atomicAnd(&sh.token[blocked >> 5], ~(1u << (blocked & 31u)));
            atomicOr(&sh.selected[position >> 5], 1u << (position & 31u));
        }
        __syncwarp();
    }
}

// A pre-token of any length, by one warp. Its symbols lie at their first bytes; the bits of `token` say which are alive.
__device__ __forceinline__ void merge_long(Shared& sh, const Tables& t, u32 begin, u32 length) {
    const u32 end = begin + length, first = begin >> 5, last = (end - 1) >> 5;
    for (u32 word = first; word <= last; ++word) {
        u32 position = word * 32 + lane_id();
        bool mine = position >= begin && position < end;
        if (mine) sh.symbol[position] = byte_id(sh, t, position);
        u32 bits = __ballot_sync(FULL, mine);
        if (lane_id() == 0) atomicOr(&sh.token[word], bits);
    }
    __syncwarp();
    for (u32 position = begin + lane_id(); position < end; position += 32) find_order(sh, t, position, end);
    __syncwarp();
    while (true) {
        u32 lowest = NO_RULE;
        for (u32 position = begin + lane_id(); position < end; position += 32) lowest = min(lowest, sh.order[position]);
        lowest = warp_min(lowest);
        if (lowest == NO_RULE) return;

        u32 product = product_of(t, lowest), blocked = end;
        for (u32 word = first; word <= last; ++word) {
            u32 position = word * 32 + lane_id();
            u32 places = __ballot_sync(FULL, position >= begin && position < end && sh.order[position] == lowest);
            if (lowest & 1u) places &= -places;
            merge_places(sh, word, places, end, product, blocked);
            if (lowest & 1u && places) break;
        }
        for (u32 word = first; word <= last; ++word) {
            u32 position = word * 32 + lane_id();
            if (position < begin || position >= end || !(sh.token[word] >> lane_id() & 1u)) continue;
            u32 next = next_alive(sh, position, end);
            bool changed = bit_at(sh.selected, position) || (next < end && bit_at(sh.selected, next));
            if (changed)
                sh.order[position] = next < end ? pair_order(t, sh.symbol[position], sh.symbol[next]) : NO_RULE;
        }
        __syncwarp();
        for (u32 position = begin + lane_id(); position < end; position += 32) {
            if (bit_at(sh.selected, position)) atomicAnd(&sh.selected[position >> 5], ~(1u << (position & 31u)));
        }
        __syncwarp();
    }
}
