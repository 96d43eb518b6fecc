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
    Slots where = slots_of(t.merge_hash, left, right);
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

// The symbols right behind those of a mask: the carry of a sum runs over what is not alive up to the next symbol.
//   alive    1 0 0 1 1 0 1
//   mask     1 . . . 1 . .
//   result   . . . 1 . . 1
__device__ __forceinline__ u32 next_of(u32 mask, u32 alive) { return ((mask << 1) + ~alive) & alive; }

// In chains of places that share symbols, every second place.
__device__ __forceinline__ u32 without_overlaps(u32 places, u32 alive) {
    u32 selected = places & ~next_of(places, alive);
    for (u32 last = selected; last;) {
        last = next_of(next_of(last, alive) & places, alive) & places;
        selected |= last;
    }
    return selected;
}

template <u32 G>
__device__ __forceinline__ u32 group_min(u32 value) {
    if constexpr (G == 32) {
        return warp_min(value);
    } else {
        for (u32 step = G / 2; step; step /= 2) value = min(value, __shfl_xor_sync(FULL, value, step));
        return value;
    }
}

// Which of `merged`, the places of one rule in a group of lanes, are merged now. A rule of odd order may form pairs of lower order:
// place by place, the pairs on both sides of the product are looked at, and the first place that forms one is the last of this round.
template <u32 G>
__device__ __forceinline__ u32 until_lower(const Tables& t, u32 merged, u32 alive, u32 symbol, u32 lowest) {
    const u32 i = lane_id() % G, group = lane_id() - i, below = bits_below(i);
    u32 before = alive & below, later = alive & ~(below << 1 | 1u), behind = later & (later - 1);
    u32 previous = before ? highest_bit(before) : 0, next = behind ? __ffs(behind) - 1 : 0;
    u32 left = __shfl_sync(FULL, symbol, group + previous), right = __shfl_sync(FULL, symbol, group + next);
    bool forms_lower = false;
    if ((lowest & 1u) && (merged >> i & 1u)) {
        u32 product = product_of(t, lowest), above = before & ~(1u << previous);
        // The symbol before belongs to the place before, when that is merged with it.
        if (above && (merged >> highest_bit(above) & 1u)) left = product;
        forms_lower =
            (before && pair_order(t, left, product) < lowest) || (behind && pair_order(t, product, right) < lowest);
    }
    u32 stops = __ballot_sync(FULL, forms_lower) >> group & bits_below(G);
    return stops ? merged & (stops ^ (stops - 1)) : merged;
}

// Pre-tokens of up to G bytes, one for each group of G lanes and a symbol for each lane; `length` 0 = the group idles.
template <u32 G>
__device__ __forceinline__ void merge_groups(Shared& sh, const Tables& t, u32 position, u32 length) {
    const u32 i = lane_id() % G, group = lane_id() - i, group_bits = bits_below(G);
    u32 alive = bits_below(length);
    u32 symbol = i < length ? byte_id(sh, t, position + i) : 0;
    u32 next_symbol = __shfl_sync(FULL, symbol, (lane_id() + 1) & 31u);
    u32 order = i + 1 < length ? pair_order(t, symbol, next_symbol) : NO_RULE;
    while (true) {
        u32 lowest = group_min<G>(order);
        u32 all_places = __ballot_sync(FULL, order == lowest && lowest != NO_RULE);
        if (!all_places) break;
        u32 merged = all_places >> group & group_bits;
        if (__any_sync(FULL, (merged & (merged - 1)) != 0)) {
            merged = without_overlaps(merged, alive);
            if (__any_sync(FULL, (lowest & 1u) && (merged & (merged - 1))))
                merged = until_lower<G>(t, merged, alive, symbol, lowest);
        }
        alive &= ~next_of(merged, alive);

        bool selected = merged >> i & 1u;
        if (selected) symbol = product_of(t, lowest);
        u32 later = alive & (FULL << i << 1);
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

__device__ __forceinline__ u32 previous_alive(const Shared& sh, u32 position, u32 begin) {
    u32 word = position >> 5, bits = sh.token[word] & bits_below(position & 31u);
    while (!bits && word * 32 > begin) bits = sh.token[--word];
    u32 found = bits ? word * 32 + highest_bit(bits) : 0;
    return bits && found >= begin ? found : FULL;
}

// Whether merging at a position forms a pair of lower order than its own; `joined`: the symbol before is merged away, too.
__device__ __forceinline__ bool forms_lower(const Shared& sh, const Tables& t, u32 position, u32 partner, u32 begin,
                                            u32 end, u32 lowest, bool joined) {
    u32 product = product_of(t, lowest), before = previous_alive(sh, position, begin);
    u32 behind = next_alive(sh, partner, end);
    if (before != FULL && pair_order(t, joined ? product : sh.symbol[before], product) < lowest) return true;
    return behind < end && pair_order(t, product, sh.symbol[behind]) < lowest;
}

// Merges the places of one rule in a word of 32 bytes. A right part that lies in a later word is gone when that word is looked at, so
// each word is a chain of its own. Returns whether the round is over.
__device__ __forceinline__ bool merge_places(Shared& sh, const Tables& t, u32 word, u32 begin, u32 end, u32 lowest) {
    const u32 position = word * 32 + lane_id(), below = bits_below(lane_id());
    bool inside = position >= begin && position < end;
    u32 alive = sh.token[word] & __ballot_sync(FULL, inside) & below;
    bool here = inside && sh.order[position] == lowest;
    u32 places = __ballot_sync(FULL, here);
    if (!places) return false;
    u32 previous = alive ? 1u << highest_bit(alive) : 0, above = alive & ~previous;
    u32 chain = __ballot_sync(FULL, here && !(places & previous)) & (below << 1 | 1u);
    bool even = chain && !(__popc(alive & ~bits_below(highest_bit(chain))) & 1u);
    u32 merged = __ballot_sync(FULL, here && even);
    bool selected = merged >> lane_id() & 1u;
    u32 partner = selected ? next_alive(sh, position, end) : end, stops = 0;
    if (lowest & 1u) {
        bool joined = above && (merged >> highest_bit(above) & 1u);
        stops = __ballot_sync(FULL, selected && forms_lower(sh, t, position, partner, begin, end, lowest, joined));
        if (stops) merged &= stops ^ (stops - 1);
        selected = merged >> lane_id() & 1u;
    }
    __syncwarp();
    if (selected) {
        sh.symbol[position] = product_of(t, lowest);
        sh.order[partner] = NO_RULE;
        atomicAnd(&sh.token[partner >> 5], ~(1u << (partner & 31u)));
    }
    if (lane_id() == 0) atomicOr(&sh.selected[word], merged);
    __syncwarp();
    return stops != 0;
}

// A long pre-token: bytes [begin, end) of the window. Lane i looks after the positions begin + i, begin + i + 32, ...
struct Stretch {
    u32 begin, end;

    // The lowest order among this lane's positions.
    __device__ __forceinline__ u32 lowest(const Shared& sh) const {
        u32 result = NO_RULE;
        for (u32 at = begin + lane_id(); at < end; at += 32) result = min(result, sh.order[at]);
        return result;
    }
    __device__ __forceinline__ bool is_mine(u32 position) const { return ((position - begin) & 31u) == lane_id(); }
};

// Merges the only place of a rule. The first lane finds the order of the product's pair, the second one that of the pair before.
__device__ __forceinline__ void merge_place(Shared& sh, const Tables& t, const Stretch& s, u32 place, u32 lowest,
                                            u32& own) {
    u32 partner = next_alive(sh, place, s.end), product = product_of(t, lowest);
    u32 behind = next_alive(sh, partner, s.end), before = previous_alive(sh, place, s.begin);
    u32 order = NO_RULE;
    if (lane_id() == 0 && behind < s.end) order = pair_order(t, product, sh.symbol[behind]);
    if (lane_id() == 1 && before != FULL) order = pair_order(t, sh.symbol[before], product);
    __syncwarp();
    if (lane_id() == 0) {
        sh.symbol[place] = product;
        sh.order[place] = order;
        sh.order[partner] = NO_RULE;
        atomicAnd(&sh.token[partner >> 5], ~(1u << (partner & 31u)));
    } else if (lane_id() == 1 && before != FULL) {
        sh.order[before] = order;
    }
    __syncwarp();
    if (s.is_mine(place) || s.is_mine(partner) || (before != FULL && s.is_mine(before))) own = s.lowest(sh);
}

// Merges all places of a rule, as far as they may be merged in one round.
__device__ __forceinline__ void merge_all_places(Shared& sh, const Tables& t, const Stretch& s, u32 lowest) {
    const u32 first = s.begin >> 5, last = (s.end - 1) >> 5;
    for (u32 word = first; word <= last; ++word) {
        if (merge_places(sh, t, word, s.begin, s.end, lowest)) break;
    }
    for (u32 at = s.begin + lane_id(); at < s.end; at += 32) {
        if (!bit_at(sh.token, at)) continue;
        u32 next = next_alive(sh, at, s.end);
        bool changed = bit_at(sh.selected, at) || (next < s.end && bit_at(sh.selected, next));
        if (changed) sh.order[at] = next < s.end ? pair_order(t, sh.symbol[at], sh.symbol[next]) : NO_RULE;
    }
    __syncwarp();
    for (u32 at = s.begin + lane_id(); at < s.end; at += 32) {
        if (bit_at(sh.selected, at)) atomicAnd(&sh.selected[at >> 5], ~(1u << (at & 31u)));
    }
    __syncwarp();
}

// A pre-token of any length, by one warp. Its symbols lie at their first bytes; the bits of `token` say which are alive.
__device__ __forceinline__ void merge_long(Shared& sh, const Tables& t, u32 begin, u32 length) {
    const Stretch s{begin, begin + length};
    for (u32 at = begin + lane_id(); at < s.end; at += 32) {
        sh.symbol[at] = byte_id(sh, t, at);
        atomicOr(&sh.token[at >> 5], 1u << (at & 31u));
    }
    __syncwarp();
    for (u32 at = begin + lane_id(); at < s.end; at += 32) {
        sh.order[at] = at + 1 < s.end ? pair_order(t, sh.symbol[at], sh.symbol[at + 1]) : NO_RULE;
    }
    __syncwarp();
    u32 own = s.lowest(sh);
    while (true) {
        u32 lowest = warp_min(own);
        if (lowest == NO_RULE) return;
        u32 n_places = 0, place = FULL;
        for (u32 at = begin + lane_id(); own == lowest && at < s.end; at += 32) {
            bool here = sh.order[at] == lowest;
            n_places += here;
            place = min(place, here ? at : FULL);
        }
        if (warp_sum(n_places) == 1) {
            merge_place(sh, t, s, warp_min(place), lowest, own);
        } else {
            merge_all_places(sh, t, s, lowest);
            own = s.lowest(sh);
        }
    }
}
