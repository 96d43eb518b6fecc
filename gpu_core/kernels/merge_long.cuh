// Stage 5, for pre-tokens of over 64 bytes: a warp for each. Symbols, and the orders of the pairs that begin at them, lie in shared memory,
// at their first bytes. A round merges all places of one rule, or what comes next of several rules.
#pragma once

#include "merge.cuh"

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

// What the pair that begins at a position becomes.
__device__ __forceinline__ u32 product_at(const Shared& sh, u32 position) {
    return HAS_RANK_IDS ? sh.product[HAS_RANK_IDS ? position : 0] : product_of(sh.order[position]);
}

// Finds the rule of the pair of two symbols, the first of which lies at a position.
__device__ __forceinline__ void find_pair(Shared& sh, const Tables& t, u32 position, u32 left, u32 right) {
    const Rule rule = load_rule(t, left, right);
    sh.order[position] = rule.order();
    if constexpr (HAS_RANK_IDS) sh.product[position] = rule.product();
}

// Whether merging at a position forms a pair of lower order than its own; `joined`: the symbol before is merged away, too.
__device__ __forceinline__ bool forms_lower(const Shared& sh, const Tables& t, u32 position, u32 partner, u32 begin,
                                            u32 end, u32 lowest, bool joined) {
    u32 product = product_at(sh, position), before = previous_alive(sh, position, begin);
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
        sh.symbol[position] = product_at(sh, position);
        sh.order[partner] = NO_RULE;
        atomicAnd(&sh.token[partner >> 5], ~(1u << (partner & 31u)));
    }
    if (lane_id() == 0) atomicOr(&sh.selected[word], merged);
    __syncwarp();
    return stops != 0;
}

// The two lowest of several orders, and the first position that has the lowest.
struct Lowest {
    u32 order, second, place;
};

// A long pre-token: bytes [begin, end) of the window. Each lane looks after `span` positions that follow each other; an odd number, so
// that no two lanes read from the same bank.
struct Stretch {
    u32 begin, end, span;

    __device__ __forceinline__ Stretch(u32 position, u32 length)
        : begin(position), end(position + length), span((length + 31) / 32 | 1u) {}

    // The lowest orders among this lane's positions.
    __device__ __forceinline__ Lowest lowest(const Shared& sh) const {
        constexpr u32 IN_FLIGHT = 6;  // loads that do not wait for each other
        const u32 first = begin + lane_id() * span, last = min(end, first + span);
        Lowest result = {NO_RULE, NO_RULE, FULL};
        for (u32 at = first; at < last; at += IN_FLIGHT) {
            u32 orders[IN_FLIGHT];
            for (u32 k = 0; k < IN_FLIGHT; ++k) orders[k] = at + k < last ? sh.order[at + k] : NO_RULE;
            for (u32 k = 0; k < IN_FLIGHT; ++k) {
                result.second = min(result.second, max(result.order, orders[k]));
                if (orders[k] < result.order) result.place = at + k;
                result.order = min(result.order, orders[k]);
            }
        }
        return result;
    }
};

// The symbols around a pair: before it (FULL: none), its second one, and behind it (the end: none).
struct Neighbours {
    u32 before, partner, behind;
};

// The words next to the place's own are loaded with it; only what lies further away is searched for.
__device__ __forceinline__ Neighbours neighbours_of(const Shared& sh, const Stretch& s, u32 place) {
    const u32 word = place >> 5, here = sh.token[word], below = word * 32 > s.begin ? sh.token[word - 1] : 0;
    const u32 above = (word + 1) * 32 < s.end ? sh.token[word + 1] : 0;
    const u64 later = (static_cast<u64>(above) << 32 | here) >> (place & 31u) >> 1, latest = later & (later - 1);
    const u64 earlier = static_cast<u64>(here & bits_below(place & 31u)) << 32 | below;
    Neighbours near = {FULL, 0, 0};
    near.partner = later ? place + first_of(later) + 1 : next_alive(sh, place, s.end);
    near.behind = latest ? min(s.end, place + first_of(latest) + 1) : next_alive(sh, near.partner, s.end);
    if (place > s.begin) near.before = earlier ? word * 32 - 32 + last_of(earlier) : previous_alive(sh, place, s.begin);
    return near;
}

// Merges the pairs that come next, each a lane's lowest, in one round: those below a bound. Nobody's second pair lies below it, no pair
// that a merge forms does, and no two of them touch; so one after the other they would be merged just like that. At least the first
// of all is merged.
//
//   lanes' lowest      7 at 3    90 at 40    12 at 71    30 at 110
//   second             25        95          40          31            bound 25
//   pairs they form    19, -                 60, 55                    bound 19: the places 3 and 71 are merged
__device__ __forceinline__ void merge_lowest(Shared& sh, const Tables& t, const Stretch& s, const Lowest& own,
                                             u32 lowest) {
    const u32 all_first = __ballot_sync(FULL, own.order == lowest);
    const bool is_first = lane_id() == first_of(all_first);
    u32 bound = warp_min(own.second);
    const bool wanted = own.order < bound || is_first;
    Neighbours near = {FULL, 0, 0};
    u32 product = 0, left_order = NO_RULE, right_order = NO_RULE, left_product = 0, right_product = 0;
    if (wanted) {
        near = neighbours_of(sh, s, own.place);
        product = product_at(sh, own.place);
        const bool has_left = near.before != FULL, has_right = near.behind < s.end;
        const Rule left = load_rule(t, has_left ? sh.symbol[near.before] : product, product);
        const Rule right = load_rule(t, product, has_right ? sh.symbol[near.behind] : product);
        if (has_left) left_order = left.order();
        if (has_right) right_order = right.order();
        if constexpr (HAS_RANK_IDS) left_product = left.product(), right_product = right.product();
    }
    const u32 formed = min(left_order, right_order), later = __ballot_sync(FULL, wanted) >> lane_id() >> 1;
    const u32 next = later ? lane_id() + 1 + first_of(later) : lane_id();
    const u32 next_place = __shfl_sync(FULL, own.place, next), next_order = __shfl_sync(FULL, own.order, next);
    u32 touched = NO_RULE;
    if (wanted && later && next_place <= near.behind) {
        // Two that share a symbol are both left out, because the second one may touch a third.
        touched = next_place == near.partner ? min(own.order, next_order) : max(own.order, next_order);
    }
    bound = min(bound, warp_min(min(formed, touched)));
    __syncwarp();  // all lanes have read what some of them write now
    if (is_first || (wanted && own.order < bound)) {
        sh.symbol[own.place] = product;
        sh.order[near.partner] = NO_RULE;
        atomicAnd(&sh.token[near.partner >> 5], ~(1u << (near.partner & 31u)));
        sh.order[own.place] = right_order;
        if (near.before != FULL) sh.order[near.before] = left_order;
        if constexpr (HAS_RANK_IDS) {
            sh.product[own.place] = right_product;
            if (near.before != FULL) sh.product[near.before] = left_product;
        }
    }
    __syncwarp();
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
        if (!changed) continue;
        sh.order[at] = NO_RULE;
        if (next < s.end) find_pair(sh, t, at, sh.symbol[at], sh.symbol[next]);
    }
    __syncwarp();
    for (u32 at = s.begin + lane_id(); at < s.end; at += 32) {
        if (bit_at(sh.selected, at)) atomicAnd(&sh.selected[at >> 5], ~(1u << (at & 31u)));
    }
    __syncwarp();
}

constexpr int FEW_PLACES = 4;  // of one rule: so many are merged with what comes next, more by themselves

// A pre-token of any length, by one warp. Its symbols lie at their first bytes; the bits of `token` say which are alive.
__device__ __forceinline__ void merge_long(Shared& sh, const Tables& t, u32 begin, u32 length) {
    const Stretch s(begin, length);
    for (u32 at = begin + lane_id(); at < s.end; at += 32) {
        u32 symbol = first_symbol(sh, t, at);
        sh.symbol[at] = symbol;
        if (!HAS_CHARACTERS || symbol != NO_SYMBOL) atomicOr(&sh.token[at >> 5], 1u << (at & 31u));
    }
    __syncwarp();
    for (u32 at = begin + lane_id(); at < s.end; at += 32) {
        u32 next = HAS_CHARACTERS ? next_alive(sh, at, s.end) : at + 1;
        bool pairs = next < s.end && (!HAS_CHARACTERS || bit_at(sh.token, at));
        sh.order[at] = NO_RULE;
        if (pairs) find_pair(sh, t, at, sh.symbol[at], sh.symbol[next]);
    }
    __syncwarp();
    while (true) {
        const Lowest own = s.lowest(sh);
        const u32 lowest = warp_min(own.order);
        if (lowest == NO_RULE) return;
        const bool here = own.order == lowest;
        if (__popc(__ballot_sync(FULL, here)) > FEW_PLACES || __any_sync(FULL, own.second == lowest)) {
            merge_all_places(sh, t, s, lowest);
        } else {
            merge_lowest(sh, t, s, own, lowest);
        }
    }
}
