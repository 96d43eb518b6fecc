// A mask of the whole window: lane i of a warp holds word i, bit b of it stands for byte 32 * i + b. Byte 0 is the first of the text, so
// "the byte before" is a shift to higher bits, through the lanes.
#pragma once

#include "window.cuh"

__device__ __forceinline__ u32 shift_up(u32 mask) {
    u32 below = __shfl_up_sync(FULL, mask, 1);
    return mask << 1 | (lane_id() ? below >> 31 : 0);
}

__device__ __forceinline__ u32 shift_down(u32 mask) {
    u32 above = __shfl_down_sync(FULL, mask, 1);
    return mask >> 1 | (lane_id() < 31 ? above << 31 : 0);
}

// The lowest set position of a mask, or WINDOW.
__device__ __forceinline__ u32 lowest_position(u32 mask) {
    return warp_min(mask ? lane_id() * 32 + __ffs(mask) - 1 : WINDOW);
}

__device__ __forceinline__ bool has_position(u32 mask, u32 position) {
    return __ballot_sync(FULL, lane_id() == position >> 5 && (mask >> (position & 31u) & 1u)) != 0;
}

// Carries into each lane when all lanes add at once: `generates` and `passes` have a bit for each lane.
__device__ __forceinline__ u32 lane_carries(u32 generates, u32 passes) { return ((generates << 1) + passes) ^ passes; }

// members + seeds, as one number of 1024 bits: a carry runs from each seed through the members above it.
//   members  . 1 1 1 . 1 1 .      lowest bit on the left
//   seeds    . . 1 . . . . .
//   sum      . 1 . . 1 1 1 .      the members that the carry went through are 0
__device__ __forceinline__ u32 add_up(u32 members, u32 seeds) {
    u32 sum = members + seeds;
    u32 carries = lane_carries(__ballot_sync(FULL, sum < members), __ballot_sync(FULL, sum == FULL));
    return sum + (carries >> lane_id() & 1u);
}

// The same towards the beginning of the text.
__device__ __forceinline__ u32 add_down(u32 members, u32 seeds) {
    u32 sum = __brev(members) + __brev(seeds);
    u32 generates = __brev(__ballot_sync(FULL, sum < __brev(members)));
    u32 passes = __brev(__ballot_sync(FULL, sum == FULL));
    u32 carries = __brev(lane_carries(generates, passes));
    return __brev(sum + (carries >> lane_id() & 1u));
}

// What one lane knows about its 32 bytes.
struct Planes {
    u32 lead, border, live;
    u32 cut;  // the window's first bytes when they belong to a character that begins before it
    u32 letter, number, newline, plain_space, blank, other, punctuation, cjk, blanks;
    u32 one, two, a_to_z, ascii_punctuation;

    // Whether the byte before has the property, and is seen.
    __device__ __forceinline__ u32 before(u32 mask) const { return shift_up(mask) & ~border; }
    // Whether the byte after has the property, and sees this one.
    __device__ __forceinline__ u32 after(u32 mask) const { return shift_down(mask & ~border); }

    // First bytes of the characters whose last byte is in the mask.
    __device__ __forceinline__ u32 lead_of(u32 mask) const {
        u32 result = mask & lead, rest = mask & ~lead;
        while (__any_sync(FULL, rest != 0)) {
            rest = shift_down(rest);
            result |= rest & lead;
            rest &= ~lead;
        }
        return result;
    }

    // Members that follow a seed in an unbroken run of members. A seed is the first member of its run and no border.
    __device__ __forceinline__ u32 run_after(u32 members, u32 seeds) const {
        u32 open = members & ~border;
        return open & ~add_up(open, seeds & open);
    }
};

__device__ __forceinline__ Planes read_planes(const Shared& sh, u32 n_live) {
    Planes m;
    u32 lane = lane_id(), hidden = sh.literal[lane];
    u32 bit0 = sh.code[0][lane] & ~hidden, bit1 = sh.code[1][lane] & ~hidden, bit2 = sh.code[2][lane] & ~hidden;
    u32 bit3 = N_CODE_PLANES > 3 ? sh.code[N_CODE_PLANES - 1][lane] & ~hidden : 0;
    u32 low = ~bit2 & ~bit3;
    m.letter = low & ~bit1 & bit0;
    m.number = low & bit1 & ~bit0;
    m.newline = low & bit1 & bit0;
    m.plain_space = bit2 & ~bit1 & ~bit0;
    m.blank = bit2 & ~bit1 & bit0;
    m.other = bit2 & bit1 & ~bit0;
    m.punctuation = bit2 & bit1 & bit0;
    m.cjk = bit3;
    m.blanks = m.plain_space | m.blank;
    m.lead = sh.lead[lane];
    u32 rest = ~m.lead;
    m.cut = lane == 0 ? (rest ^ (rest + 1)) >> 1 & 7u : 0;
    m.border = sh.document_border[lane] | sh.literal_end[lane];
    m.live = n_live > lane * 32 ? bits_below(n_live - lane * 32) : 0;
    m.one = HAS_CONTRACTIONS ? sh.one[lane] : 0;
    m.two = HAS_CONTRACTIONS ? sh.two[lane] : 0;
    m.a_to_z = HAS_CONTRACTIONS ? 0 : sh.a_to_z[lane];
    m.ascii_punctuation = HAS_CONTRACTIONS ? 0 : sh.ascii_punctuation[lane];
    return m;
}
