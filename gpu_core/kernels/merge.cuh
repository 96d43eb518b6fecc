// Stage 5: byte-pair merges of the pre-tokens that are no entry. The pair of lowest rank goes first, the leftmost of several. Where the
// table allows it (gpu_core/tables.py), all places of one rule are merged at once: in a chain of equal pairs every second one.
//
//   bytes     b a n a n a        alive 111111    lowest pair: an, at 1 and 3
//   step 1    b an . an . a      alive 110101    lowest pair: an+an, at 1
//   step 2    b anan . . . a     alive 110001    ...
#pragma once

#include "literals.cuh"

constexpr u32 NO_RULE = 0xffffffffu;

// The product of a rule whose order holds it.
__device__ __forceinline__ u32 product_of(u32 order) { return order >> 10; }

// A rule of the table on its way: both slots are loaded at once, and those of several pairs before the first is looked at.
#if SIDETOK_RANK_IDS
struct Rule {
    u32 left, right;
    uint4 first, second;  // left, right, order, product

    __device__ __forceinline__ bool is(const uint4& slot) const { return slot.x == left && slot.y == right; }
    __device__ __forceinline__ u32 order() const { return is(first) ? first.z : is(second) ? second.z : NO_RULE; }
    __device__ __forceinline__ u32 product() const { return is(first) ? first.w : second.w; }
};

__device__ __forceinline__ Rule load_rule(const Tables& t, u32 left, u32 right) {
    Slots where = slots_of(t.merge_hash, left, right);
    const uint4* slots = reinterpret_cast<const uint4*>(t.merge_slots);
    return {left, right, __ldg(&slots[where.first]), __ldg(&slots[where.second])};
}
#else
struct Rule {
    u64 wanted, first, second;

    // What ranks compare by, or NO_RULE; bit 0: see until_lower.
    __device__ __forceinline__ u32 order() const {
        if (first >> 28 == wanted) return static_cast<u32>(first) & 0x0fffffffu;
        return second >> 28 == wanted ? static_cast<u32>(second) & 0x0fffffffu : NO_RULE;
    }
    __device__ __forceinline__ u32 product() const { return product_of(order()); }
};

__device__ __forceinline__ Rule load_rule(const Tables& t, u32 left, u32 right) {
    Slots where = slots_of(t.merge_hash, left, right);
    return {static_cast<u64>(left) << 18 | right, __ldg(&t.merge_slots[where.first]),
            __ldg(&t.merge_slots[where.second])};
}
#endif

__device__ __forceinline__ u32 pair_order(const Tables& t, u32 left, u32 right) {
    return load_rule(t, left, right).order();
}

__device__ __forceinline__ u32 byte_id(const Shared& sh, const Tables& t, u32 position) {
    return __ldg(&t.byte_ids[byte_at(sh, position)]);
}

constexpr u32 NO_SYMBOL = 0xffffffffu;

// The symbol with which merging begins at a byte. If symbols are characters: that of the character that begins here, or that of the
// byte when the character is no entry; NO_SYMBOL at the other bytes.
__device__ __forceinline__ u32 first_symbol(const Shared& sh, const Tables& t, u32 position) {
    if constexpr (!HAS_CHARACTERS) return byte_id(sh, t, position);
    u32 back = (byte_at(sh, position) & 0xc0) == 0x80 ? bytes_to_lead(sh, position) : 0;
    u32 code = decode_at(sh, position - back), symbol = NO_SYMBOL;
    if (code != INVALID) symbol = __ldg(&t.character_blocks[__ldg(&t.character_pages[code >> 8]) * 256 + (code & 255)]);
    if (symbol == NO_SYMBOL) return byte_id(sh, t, position);
    return back ? NO_SYMBOL : symbol;
}

// Positions of the symbols of a pre-token, as bits of a word or of a double word.
__device__ __forceinline__ u32 first_of(u32 mask) { return __ffs(mask) - 1; }
__device__ __forceinline__ u32 first_of(u64 mask) { return __ffsll(mask) - 1; }
__device__ __forceinline__ u32 last_of(u32 mask) { return 31 - __clz(mask); }
__device__ __forceinline__ u32 last_of(u64 mask) { return 63 - __clzll(mask); }

template <bool IS_WIDE>
struct MaskOf {
    using Type = u32;
};
template <>
struct MaskOf<true> {
    using Type = u64;
};

// The symbols right behind those of a mask: the carry of a sum runs over what is not alive up to the next symbol.
//   alive    1 0 0 1 1 0 1
//   mask     1 . . . 1 . .
//   result   . . . 1 . . 1
template <class Mask>
__device__ __forceinline__ Mask next_of(Mask mask, Mask alive) {
    return ((mask << 1) + ~alive) & alive;
}

// In chains of places that share symbols, every second place.
template <class Mask>
__device__ __forceinline__ Mask without_overlaps(Mask places, Mask alive) {
    Mask selected = places & ~next_of(places, alive);
    for (Mask last = selected; last;) {
        last = next_of(next_of(last, alive) & places, alive) & places;
        selected |= last;
    }
    return selected;
}

// G lanes that merge a pre-token of up to G * N bytes: lane i holds the symbols at i and, if N is 2, at G + i.
template <u32 G, u32 N>
struct Group {
    using Mask = typename MaskOf<(G * N > 32)>::Type;
    u32 i, base;  // this lane in the group, the group's first lane in the warp
    Mask alive;
    u32 symbol[N], order[N];
    u32 product[HAS_RANK_IDS ? N : 1];

    // What the pair that begins at a symbol becomes.
    __device__ __forceinline__ u32 product_at(u32 h) const {
        return HAS_RANK_IDS ? product[HAS_RANK_IDS ? h : 0] : product_of(order[h]);
    }
    __device__ __forceinline__ Mask bit(u32 h) const { return static_cast<Mask>(1) << (h * G + i); }
    __device__ __forceinline__ Mask before(u32 h) const { return alive & (bit(h) - 1); }
    __device__ __forceinline__ Mask behind(u32 h) const { return alive & ~(bit(h) | (bit(h) - 1)); }

    // The group's mask of what each of its lanes says about each of its symbols; `any` tells whether any lane of the warp does.
    __device__ __forceinline__ Mask gather(const bool (&says)[N], bool& any) const {
        Mask result = 0;
        u32 all = 0;
        for (u32 h = 0; h < N; ++h) {
            u32 lanes = __ballot_sync(FULL, says[h]);
            all |= lanes;
            result |= static_cast<Mask>(lanes >> base & bits_below(G)) << (h * G);
        }
        any = all != 0;
        return result;
    }

    __device__ __forceinline__ u32 symbol_at(u32 position) const {
        u32 result = __shfl_sync(FULL, symbol[0], base + position % G);
        if constexpr (N == 2) {
            u32 high = __shfl_sync(FULL, symbol[1], base + position % G);
            if (position >= G) result = high;
        }
        return result;
    }

    __device__ __forceinline__ u32 lowest() const {
        u32 value = order[0];
        if constexpr (N == 2) value = min(value, order[1]);
        if constexpr (G == 32) {
            return warp_min(value);
        } else {
            for (u32 step = G / 2; step; step /= 2) value = min(value, __shfl_xor_sync(FULL, value, step));
            return value;
        }
    }

    // Orders of the pairs that begin at symbols of `changed`.
    __device__ __forceinline__ void find_orders(const Tables& t, Mask changed) {
        Rule rule[N];
        for (u32 h = 0; h < N; ++h) {
            Mask later = behind(h);
            u32 next = symbol_at(later ? first_of(later) : 0);
            bool wanted = later && (changed & bit(h));
            rule[h] = load_rule(t, wanted ? symbol[h] : 0, wanted ? next : 0);
        }
        for (u32 h = 0; h < N; ++h) {
            if (!(alive & bit(h))) {
                order[h] = NO_RULE;
            } else if (changed & bit(h)) {
                order[h] = behind(h) ? rule[h].order() : NO_RULE;
                if constexpr (HAS_RANK_IDS) product[h] = rule[h].product();
            }
        }
    }

    // Which of `merged`, the places of one rule, are merged in this round. A rule of odd order may form pairs of lower order: from left
    // to right, the pairs on both sides of the product are looked at, and the first place that forms one is the last of the round.
    __device__ __forceinline__ Mask until_lower(const Tables& t, Mask merged, u32 rule_order) const {
        bool lower[N];
        for (u32 h = 0; h < N; ++h) {
            Mask earlier = before(h), later = behind(h) & (behind(h) - 1);
            Mask above = earlier ? earlier & ~(static_cast<Mask>(1) << last_of(earlier)) : 0;
            u32 left = symbol_at(earlier ? last_of(earlier) : 0), right = symbol_at(later ? first_of(later) : 0);
            lower[h] = false;
            if ((rule_order & 1u) && (merged & bit(h))) {
                u32 whole = product_at(h);
                // The symbol before belongs to the place before, when that is merged with it.
                if (above && (merged >> last_of(above) & 1u)) left = whole;
                lower[h] = (earlier && pair_order(t, left, whole) < rule_order) ||
                           (later && pair_order(t, whole, right) < rule_order);
            }
        }
        bool any;
        Mask stops = gather(lower, any);
        return stops ? merged & (stops ^ (stops - 1)) : merged;
    }
};

// Pre-tokens of up to G * N bytes, one for each group of G lanes; `length` 0 = the group idles.
template <u32 G, u32 N>
__device__ __forceinline__ void merge_groups(Shared& sh, const Tables& t, u32 position, u32 length) {
    using Mask = typename Group<G, N>::Mask;
    Group<G, N> g;
    g.i = lane_id() % G;
    g.base = lane_id() - g.i;
    g.alive = length ? ~static_cast<Mask>(0) >> (sizeof(Mask) * 8 - length) : 0;
    for (u32 h = 0; h < N; ++h) g.symbol[h] = g.alive & g.bit(h) ? first_symbol(sh, t, position + h * G + g.i) : 0;
    if constexpr (HAS_CHARACTERS) {
        bool begins[N], any;
        for (u32 h = 0; h < N; ++h) begins[h] = (g.alive & g.bit(h)) && g.symbol[h] != NO_SYMBOL;
        g.alive = g.gather(begins, any);
    }
    g.find_orders(t, g.alive);
    while (true) {
        u32 lowest = g.lowest();
        bool here[N];
        for (u32 h = 0; h < N; ++h) here[h] = g.order[h] == lowest && lowest != NO_RULE;
        bool any;
        Mask merged = g.gather(here, any);
        if (!any) break;
        if (__any_sync(FULL, (merged & (merged - 1)) != 0)) {
            merged = without_overlaps(merged, g.alive);
            bool careful = (lowest & 1u) && (merged & (merged - 1));
            if (__any_sync(FULL, careful)) merged = g.until_lower(t, merged, lowest);
        }
        g.alive &= ~next_of(merged, g.alive);
        Mask changed = merged;
        for (u32 h = 0; h < N; ++h) {
            if (merged & g.bit(h)) g.symbol[h] = g.product_at(h);
            if (g.behind(h) && (merged >> first_of(g.behind(h)) & 1u)) changed |= g.bit(h);
        }
        g.find_orders(t, changed);
    }
    for (u32 h = 0; h < N; ++h) {
        u32 at = position + h * G + g.i;
        if (!(g.alive & g.bit(h))) continue;
        sh.symbol[at] = g.symbol[h];
        atomicOr(&sh.token[at >> 5], 1u << (at & 31u));
    }
}
