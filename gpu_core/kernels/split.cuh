// Stage 3: class masks become the first bytes of pre-tokens. The rules, one boolean at a time, are in gpu_core/twin_split.py.
//
//   text     d o n ' t _ w a i t \n \n _ x        (_ = plain space)
//   class    L L L O L P L L L L  E  E P L
//   start    1 0 0 1 0 1 0 0 0 0  1  0 1 0        cl100k
//
// Four facts may come from far beyond the window; the kernel finds them out (walk.cuh) and they enter here as facts of the first byte
// (claimed: its newline belongs to punctuation before it; tail: its letter to an ASCII tail; phase: digits before it in its
// run, modulo 3) and of the last byte (ahead: a newline follows its blanks).
#pragma once

#include "masks.cuh"

// Facts that the next windows may need, one bit for each byte; the phase comes as a count for each lane.
struct Runs {
    u32 claimed, tail;
    u32 phase_passes, phase_count;  // whether the lane is all digits, and the digits up to its end
};

// Digits at which a group of three begins.
__device__ __forceinline__ u32 digit_groups(const Planes& m, u32 phase, Runs& runs) {
    u32 digits = m.number & m.lead, first = digits & ~m.before(m.number);
    u32 outside = ~(m.number | m.cut), at_border = m.number & m.border;
    u32 later = outside ? ~bits_below(highest_bit(outside) + 1) : FULL;
    if (at_border) later &= ~bits_below(highest_bit(at_border));
    u32 passes = outside == 0 && at_border == 0, count = __popc(digits & later);
    runs.phase_passes = passes;
    u32 carried = passes, total = count;
    if (__any_sync(FULL, passes)) {
        for (u32 step = 1; step < 32; step *= 2) {
            u32 other_passes = __shfl_up_sync(FULL, carried, step), other_total = __shfl_up_sync(FULL, total, step);
            if (lane_id() >= step && carried) {
                total += other_total;
                carried = other_passes;
            }
        }
    }
    runs.phase_passes = carried;
    runs.phase_count = total;
    u32 before = __shfl_up_sync(FULL, carried ? total + phase : total, 1);
    // At the window's first character a run begins only if a border says so: what is before it is not in sight.
    if (lane_id() == 0) first &= m.border | ~(m.cut << 1 | 1u);
    u32 at = (lane_id() ? before : phase) % 3, result = 0;
    for (u32 rest = digits; rest; rest &= rest - 1) {
        u32 bit = rest & -rest;
        if (first & bit) at = 0;
        if (at == 0) result |= bit;
        at = at == 2 ? 0 : at + 1;
    }
    return result;
}

// Blanks with a newline later in the same run of white space. Each run of blanks has one place where that can be told: its end.
__device__ __forceinline__ u32 newline_ahead(const Planes& m, u32 ahead) {
    u32 seeds = m.blanks & m.after(m.newline);
    if (lane_id() == 31 && ahead) seeds |= m.blanks & 0x80000000u;
    u32 open = m.blanks & ~m.border;
    u32 sum = add_down(open, seeds);
    return (open & ~sum) | (m.blanks & m.border & sum);
}

// Starts of blanks: after something solid, after a run's last newline, and the last blank before something solid.
__device__ __forceinline__ u32 white_space(const Planes& m, u32 solid, u32 claimed, u32 ahead) {
    u32 last = m.lead_of(m.blanks & m.after(solid));
    u32 after_newline = m.before(m.newline) & (m.before(claimed) | ~newline_ahead(m, ahead));
    return m.lead & m.blanks & (m.before(solid) | after_newline | (last & m.before(m.blanks)));
}

// The seed at the window's first byte, where the byte before is not in sight.
__device__ __forceinline__ u32 first_byte(u32 fact, u32 members) { return lane_id() == 0 && fact ? members & 1u : 0; }

// Letters of contractions, and the bytes right after them.
__device__ __forceinline__ void contractions(const Planes& m, u32 alone, u32& tail, u32& after) {
    tail = after = 0;
    u32 one = m.one & alone, two = m.two & alone;
    if (!__any_sync(FULL, (one | two) != 0)) return;
    // An added token has no letters here: it ends the text for a contraction.
    one = m.before(one) & m.letter;
    two = m.before(two) & m.letter;
    u32 two_second = m.before(two) & m.letter;
    two = shift_down(two_second);
    tail = one | two | two_second;
    after = m.before(one | two_second);
}

__device__ __forceinline__ u32 split_cl100k(const Planes& m, const Facts& facts, Runs& runs) {
    u32 solid = m.letter | m.number | m.other;
    u32 before_other = m.before(m.other), before_newline = m.before(m.newline);
    runs.claimed = m.run_after(m.newline, (m.newline & before_other) | first_byte(facts.claimed, m.newline));
    runs.tail = 0;
    u32 alone = m.other & m.lead & ~m.before(m.other | m.plain_space);
    u32 tail, after;
    contractions(m, alone, tail, after);
    u32 alone_bytes = alone;
    if (__any_sync(FULL, (m.other & ~m.lead) != 0)) {
        for (int i = 0; i < 3; ++i) alone_bytes |= shift_up(alone_bytes) & m.other & ~m.lead;
    }
    u32 digits = m.number & m.lead;
    runs.phase_passes = runs.phase_count = 0;
    if (FAMILY == CL100K && __any_sync(FULL, digits != 0)) digits = digit_groups(m, facts.phase, runs);
    u32 after_text = m.before(m.number) | before_newline | (before_other & ~m.before(alone_bytes)) | after;
    return digits | (m.letter & m.lead & ~tail & after_text) | alone | (m.newline & m.before(m.letter | m.number)) |
           white_space(m, solid, runs.claimed, facts.ahead) | (m.border & (solid | m.newline | m.blanks));
}

__device__ __forceinline__ u32 split_gpt2(const Planes& m, Runs& runs) {
    runs = {0, 0, 0, 0};
    u32 white = m.blanks | m.newline, solid = m.letter | m.number | m.other;
    u32 tail, after;
    u32 free = ~m.before(m.other | m.plain_space);
    contractions(m, m.other & free, tail, after);
    u32 last = m.lead_of(white & m.after(solid));
    return m.lead &
           ((m.letter & ~tail & (after | ~m.before(m.letter | m.plain_space))) |
            (m.number & ~m.before(m.number | m.plain_space)) | (m.other & free) | (white & (~m.before(white) | last)));
}

__device__ __forceinline__ u32 split_deepseek(Planes m, const Facts& facts, Runs& runs) {
    runs.phase_passes = runs.phase_count = 0;
    u32 digits = m.number & m.lead;
    if (__any_sync(FULL, digits != 0)) digits = digit_groups(m, facts.phase, runs);
    // What stands before a digit group, a change to or from CJK, or a change from digits is not seen.
    m.border |= digits | (m.before(m.number) & ~m.number) | (m.before(m.cjk) ^ (m.cjk & ~m.border));
    u32 solid = m.letter | m.punctuation | m.other;
    u32 before_punctuation = m.before(m.punctuation), before_newline = m.before(m.newline);
    runs.claimed = m.run_after(m.newline, (m.newline & before_punctuation) | first_byte(facts.claimed, m.newline));
    u32 free = ~m.before(m.punctuation | m.plain_space);
    u32 letters = m.a_to_z & m.letter;
    u32 seeds = letters & m.before(m.ascii_punctuation & m.punctuation & free);
    runs.tail = m.run_after(letters, seeds | first_byte(facts.tail, letters));
    u32 before_letter = m.lead_of(m.other & m.after(m.letter));
    return (m.lead & m.letter & ~runs.tail & (before_punctuation | before_newline | m.before(runs.tail))) |
           (m.lead & m.punctuation & free) | (m.newline & m.before(m.letter | m.other)) |
           (m.lead & m.other & (~m.before(m.other) | before_letter)) |
           white_space(m, solid, runs.claimed, facts.ahead) |
           (m.border & (solid | m.newline | m.blanks | m.number | m.cjk));
}

// First bytes of the window's pre-tokens, added tokens among them.
__device__ __forceinline__ u32 split_window(const Shared& sh, const Planes& m, const Facts& facts, Runs& runs) {
    u32 start;
    if constexpr (FAMILY == GPT2) {
        start = split_gpt2(m, runs);
    } else if constexpr (FAMILY == DEEPSEEK) {
        start = split_deepseek(m, facts, runs);
    } else {
        start = split_cl100k(m, facts, runs);
    }
    // Invalid bytes have no class; yet what begins a document ends the one before it.
    return (((start | m.border) & ~sh.literal[lane_id()]) | sh.literal_start[lane_id()]) & m.live;
}
