// Stage 3b: what a tile needs to know from beyond its window. In nearly every tile nothing: the block looks once and is done.
//
//   OWN    the tile's window. Left halo all digits (or newlines, or an ASCII tail): go LEFT. Blanks from the tile to the window's
//          end: go RIGHT. No pre-token begins in the right halo: go to the END.
//   LEFT   windows to the left, until the run begins:    a digit's phase, whether newlines are claimed
//   RIGHT  windows to the right, until the blanks end:   whether a newline is ahead
//   END    the next tile's window:                       where the last pre-token ends
//
// After each of them the block comes back to its OWN window with one fact more. Walks are bounded; what lies beyond sends the
// document to the CPU.
#pragma once

#include "split.cuh"

constexpr u32 SURE = WINDOW - 8;        // behind it, a rule might need bytes that are not in the window
constexpr u32 LEFT_STEP = WINDOW - 96;  // word 1 of a window is word 30 of the next one to the left
constexpr u32 LEFT_WORD = 29;
constexpr u32 MAX_STEPS = MAX_WALK / LEFT_STEP;
constexpr u32 LEAP_STEPS = 4;
constexpr int LEAP = LEAP_STEPS * LEFT_STEP;  // bytes; a multiple of 16
constexpr bool HAS_FAR_FACTS = FAMILY != GPT2;

__device__ __forceinline__ void start_walk(Walk& walk, int tile_start) {
    walk = Walk{};
    walk.mode = OWN;
    walk.window_start = tile_start - static_cast<int>(HALO_LEFT);
}

__device__ __forceinline__ u32 members_of(const Planes& m, u32 run) {
    return run == NEWLINES ? m.newline : run == DIGITS ? m.number : m.letter & m.a_to_z;
}

// Whether the words of `lanes` are all members of a run, without a border.
__device__ __forceinline__ bool all_members(const Planes& m, u32 run, u32 lanes) {
    return (__ballot_sync(FULL, (members_of(m, run) | m.cut) == FULL && m.border == 0) & lanes) == lanes;
}

// The kind of run that fills the left halo, or 3.
__device__ __forceinline__ u32 run_from_left(const Planes& m) {
    if (all_members(m, NEWLINES, 3)) return NEWLINES;
    if ((FAMILY == CL100K || FAMILY == DEEPSEEK) && all_members(m, DIGITS, 3)) return DIGITS;
    if (FAMILY == DEEPSEEK && all_members(m, TAIL, 3)) return TAIL;
    return 3;
}

// Where the run of blanks begins that reaches the window's end; WINDOW when there is none.
__device__ __forceinline__ u32 last_blanks(const Planes& m) {
    u32 lane = lane_id() * 32;
    u32 other = ~m.blanks, cut = m.blanks & m.border;
    u32 begin = max(other ? lane + highest_bit(other) + 1 : 0, cut ? lane + highest_bit(cut) : 0);
    return __reduce_max_sync(FULL, begin);
}

// Positions below this one are split as in the whole text, as far as blanks and added tokens near the window's end allow to tell.
__device__ __forceinline__ u32 sure_end(const Shared& sh, const Tables& t, const Planes& m, const Runs& runs,
                                        u32 blanks_begin) {
    u32 lane = lane_id() * 32, late = WINDOW - t.max_literal;
    u32 candidates = sh.candidate[lane_id()] & ~(late > lane ? bits_below(late - lane) : 0);
    // What stands right before an added token is split as at the end of a text: not sure either, and up to 4 bytes long.
    u32 end = min(SURE, lowest_position(candidates) - 4);
    if (!HAS_FAR_FACTS || blanks_begin == WINDOW) return end;
    // The first of the blanks may or may not be a start only if they follow a newline that is not claimed.
    bool open = blanks_begin && has_position(m.newline & ~runs.claimed, blanks_begin - 1);
    return min(end, open ? blanks_begin : blanks_begin + 1);
}

constexpr u32 NOT_FOUND = FULL;

// First start at or behind a position, if it is sure. The end of the text counts as a start.
__device__ __forceinline__ u32 first_start_from(u32 start, u32 from, u32 sure, u32 n_live, bool last_window) {
    u32 lane = lane_id() * 32;
    u32 found = lowest_position(start & ~(from > lane ? bits_below(from - lane) : 0));
    if (last_window) return min(found, n_live);
    return found < sure ? found : NOT_FOUND;
}

__device__ __forceinline__ void go(Walk& walk, u32 mode, int window_start, Facts facts) {
    walk.mode = mode;
    walk.window_start = window_start;
    walk.current = facts;
    walk.n_steps = mode == OWN ? 0 : walk.n_steps + 1;
}

// Whether four bytes are all ASCII members of a run.
__device__ __forceinline__ bool are_members(u32 bytes, u32 run) {
    if (run == DIGITS)
        return (bytes & 0xf0f0f0f0u) == 0x30303030u && ((bytes + 0x06060606u) & 0xf0f0f0f0u) == 0x30303030u;
    if (run == NEWLINES) {
        u32 other = bytes ^ 0x0a0a0a0au;  // 0 or 7 in each byte
        return (other & 0xf8f8f8f8u) == 0 && ((other ^ (other >> 1)) & 0x03030303u) == 0;
    }
    u32 lower = bytes | 0x20202020u;
    return (bytes & 0x80808080u) == 0 && ((lower + 0x1f1f1f1fu) & ~(lower + 0x05050505u) & 0x80808080u) == 0x80808080u;
}

// Leaps to the left over ASCII members that are sure to have no border among them: without planes, 16 bytes a load, because every
// tile of a long run walks to its beginning. By one warp; `end` is where the bytes end that have been looked at.
__device__ __forceinline__ u32 leaps_left(const Tables& t, const Batch& batch, const Job& job, u32 run, u32 n_steps,
                                          int end) {
    bool may_be_literal = false;
    for (u32 byte = lane_id(); byte < 128; byte += 32) {
        may_be_literal |= (__ldg(&t.ascii[byte]) & 0x80) && are_members(byte * 0x01010101u, run);
    }
    if (__any_sync(FULL, may_be_literal)) return 0;
    await_text(batch, job.epoch, job.n_bytes, job.n_documents, 0, end);
    int floor = 0;  // a border, which is left for a window to see
    if (job.n_documents > 1) {
        floor = batch.document_starts[first_from(batch.document_starts, job.n_documents, end) - 1];
    }
    const uint4* items = reinterpret_cast<const uint4*>(batch.text);
    u32 n = 0;
    for (; end - LEAP > floor && n_steps + (n + 1) * LEAP_STEPS < MAX_STEPS; ++n, end -= LEAP) {
        bool members = true;
        for (u32 item = lane_id(); item < LEAP / 16; item += 32) {
            uint4 bytes = items[(end - LEAP) / 16 + item];
            members &= are_members(bytes.x, run) && are_members(bytes.y, run) && are_members(bytes.z, run) &&
                       are_members(bytes.w, run);
        }
        if (__any_sync(FULL, !members)) break;
    }
    return n;
}

__device__ __forceinline__ void step_left(Walk& walk, const Tables& t, const Planes& m, const Runs& runs,
                                          const Batch& batch, const Job& job) {
    constexpr u32 inner = (2u << LEFT_WORD) - 2;  // words 1 to LEFT_WORD
    bool further = all_members(m, walk.run, inner);
    u32 in_lane = lane_id() && lane_id() <= LEFT_WORD ? __popc(m.number & m.lead) : 0;
    u32 n_digits = further ? warp_sum(in_lane) : __shfl_sync(FULL, runs.phase_count, LEFT_WORD);
    bool claimed = has_position(runs.claimed, (LEFT_WORD + 1) * 32),
         tail = has_position(runs.tail, (LEFT_WORD + 1) * 32);
    u32 leaps = further ? leaps_left(t, batch, job, walk.run, walk.n_steps, walk.window_start + 32) : 0;
    __syncwarp();  // all lanes have read what one of them writes now
    if (lane_id()) return;
    walk.n_digits = (walk.n_digits + n_digits + leaps * LEAP) % 3;
    walk.n_steps += leaps * LEAP_STEPS;
    int own = job.tile_start - static_cast<int>(HALO_LEFT);
    int next = walk.window_start - static_cast<int>(LEFT_STEP + leaps * LEAP);
    if (further && walk.n_steps < MAX_STEPS) return go(walk, LEFT, next, {});
    if (further) flag_document(batch, job, job.tile_start, LONG_WALK);
    walk.knows_left = 1;
    walk.own.claimed = claimed;
    walk.own.tail = tail;
    walk.own.phase = walk.n_digits;
    go(walk, OWN, own, walk.own);
}

__device__ __forceinline__ void step_right(Walk& walk, const Planes& m, bool last_window, const Batch& batch,
                                           const Job& job) {
    u32 stop = ~m.blanks | m.border;
    if (lane_id() == 0) stop = 0;
    u32 position = lowest_position(stop);
    bool newline = position < WINDOW && has_position(m.newline & ~m.border, position);
    __syncwarp();
    if (lane_id()) return;
    bool further = position == WINDOW && !last_window;
    if (further && walk.n_steps < MAX_STEPS)
        return go(walk, RIGHT, walk.window_start + static_cast<int>(LEFT_STEP), {});
    if (further) flag_document(batch, job, job.tile_start, LONG_WALK);
    walk.knows_right = 1;
    walk.own.ahead = newline;
    go(walk, OWN, job.tile_start - static_cast<int>(HALO_LEFT), walk.own);
}

__device__ __forceinline__ void step_end(Walk& walk, u32 found) {
    __syncwarp();
    if (lane_id()) return;
    walk.knows_end = 1;
    walk.end = found == NOT_FOUND ? 0 : found + TILE;
    go(walk, OWN, walk.window_start - static_cast<int>(TILE), walk.own);
}

// A border inside a character that would be whole without it: neither of the two documents is UTF-8.
__device__ __forceinline__ void check_borders(const Shared& sh, const Planes& m, const Batch& batch, const Job& job,
                                              int window_start) {
    for (u32 rest = sh.document_border[lane_id()] & m.live & ~m.lead; rest; rest &= rest - 1) {
        u32 position = lane_id() * 32 + __ffs(rest) - 1, back = bytes_to_lead(sh, position);
        if (position <= HALO_LEFT || position > TILE_END || back == 4) continue;
        u32 code = decode_at(sh, position - back);
        if (code == INVALID || back >= n_bytes_of(code)) continue;
        int at = window_start + static_cast<int>(position);
        flag_document(batch, job, at, INVALID_UTF8);
        flag_document(batch, job, at - 1, INVALID_UTF8);
    }
}

// One look at a window by the first warp: learn what it tells, and decide where to look next.
__device__ __forceinline__ void look(Shared& sh, const Tables& t, const Batch& batch, const Job& job) {
    Walk& walk = sh.walk;
    int window_start = walk.window_start;
    int left = static_cast<int>(job.n_bytes) - window_start;
    bool last_window = left <= static_cast<int>(WINDOW);
    u32 n_live = last_window ? left : WINDOW;
    u32 mode = walk.mode;
    Planes m = read_planes(sh, n_live);
    Facts facts = walk.current;
    if (walk.knows_left && mode == OWN) {
        // The phase is known at word 1; word 0 is all digits.
        u32 n_digits = __popc(m.number & m.lead);
        facts.phase = (facts.phase + 33 - __shfl_sync(FULL, n_digits, 0)) % 3;
    }
    Runs runs;
    u32 start = split_window(sh, m, facts, runs);
    if (mode == LEFT) return step_left(walk, t, m, runs, batch, job);
    if (mode == RIGHT) return step_right(walk, m, last_window, batch, job);

    u32 blanks_begin = mode == OWN && walk.knows_right ? WINDOW : last_blanks(m);
    u32 sure = sure_end(sh, t, m, runs, blanks_begin);
    if (mode == END) return step_end(walk, first_start_from(start, HALO_LEFT, sure, n_live, last_window));

    u32 run = HAS_FAR_FACTS && !walk.knows_left ? run_from_left(m) : 3;
    bool needs_right = HAS_FAR_FACTS && !last_window && blanks_begin <= TILE_END;
    u32 end = walk.knows_end ? walk.end : first_start_from(start, TILE_END, sure, n_live, last_window);
    bool claimed = has_position(runs.claimed, TILE), tail = has_position(runs.tail, TILE);
    if (run == 3 && !needs_right && end != NOT_FOUND) {
        sh.start[lane_id()] = start;
        check_borders(sh, m, batch, job, window_start);
    }
    __syncwarp();
    if (lane_id()) return;
    if (run != 3) {
        walk.run = run;
        walk.n_digits = 0;
        go(walk, LEFT, window_start - static_cast<int>(LEFT_STEP), {});
    } else if (needs_right) {
        go(walk, RIGHT, window_start + static_cast<int>(LEFT_STEP), {});
    } else if (end == NOT_FOUND) {
        go(walk, END, window_start + static_cast<int>(TILE), {claimed, tail, 0, 0});
    } else {
        walk.end = end;
        walk.mode = DONE;
    }
}
