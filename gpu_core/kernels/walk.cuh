// Stage 3b: what a tile needs to know from beyond its window. In nearly every tile nothing: the block looks once and is done.
//
//   OWN    the tile's window. Left halo all digits (or newlines, or an ASCII tail): go LEFT. Blanks from the tile to the window's
//          end: go RIGHT. No pre-token begins in the right halo: go to the END.
//   LEFT   windows to the left, until the run begins:    a digit's phase, whether newlines are claimed. Tiles that the run fills
//          are not looked at: their blocks have said so (tile_state.cuh)
//   RIGHT  windows to the right, until the blanks end:   whether a newline is ahead
//   END    the next tile's window:                       where the last pre-token ends
//
// After each of them the block comes back to its OWN window with one fact more. Walks are bounded; what lies beyond sends the
// document to the CPU.
#pragma once

#include "split.cuh"
#include "tile_state.cuh"

constexpr u32 SURE = WINDOW - 8;        // behind it, a rule might need bytes that are not in the window
constexpr u32 LEFT_STEP = WINDOW - 96;  // word 1 of a window is word 30 of the next one to the left
constexpr u32 LEFT_WORD = 29;
constexpr u32 MAX_STEPS = MAX_WALK / LEFT_STEP;
constexpr u32 TILE_LANES = (1u << TILE_END / 32) - (1u << HALO_LEFT / 32);  // whose words are the tile's own bytes
constexpr bool HAS_FAR_FACTS = FAMILY != GPT2;

__device__ __forceinline__ void start_walk(Walk& walk, int tile_start) {
    walk = Walk{};
    walk.mode = OWN;
    walk.window_start = tile_start - static_cast<int>(HALO_LEFT);
}

__device__ __forceinline__ u32 members_of(const Planes& m, u32 run) {
    return run == NEWLINES ? m.newline : run == DIGITS ? m.number : m.letter & m.a_to_z;
}

// The words that are all members of a run, without a border: a bit for each lane.
__device__ __forceinline__ u32 words_of(const Planes& m, u32 run) {
    return __ballot_sync(FULL, (members_of(m, run) | m.cut) == FULL && m.border == 0);
}

// The kind of run that fills the left halo, and the one that fills the tile, in characters of one byte; 3 = none.
struct OwnRuns {
    u32 halo, tile;
};

__device__ __forceinline__ OwnRuns own_runs(const Planes& m) {
    OwnRuns found = {3, 3};
    for (u32 run = NEWLINES; run <= TAIL; ++run) {
        if ((run == DIGITS && FAMILY != CL100K && FAMILY != DEEPSEEK) || (run == TAIL && FAMILY != DEEPSEEK)) continue;
        const u32 words = words_of(m, run);
        if ((words & 3) == 3) found.halo = run;
        if ((words & TILE_LANES) == TILE_LANES) found.tile = run;
    }
    if (found.tile != 3 && (~__ballot_sync(FULL, m.lead == FULL) & TILE_LANES)) found.tile = 3;
    return found;
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

// Tells the tiles behind that a run fills this one. By one thread.
__device__ __forceinline__ void tell_run(Walk& walk, const Batch& batch, const Job& job, u32 run) {
    walk.filled = run + 1;
    const TileStates of{batch.tile_states, job.epoch, walk.filled};
    of.states[job.tile] = of.state_of(UNCOUNTED, 0);
}

// Leaps to the left over tiles that a run fills, if their blocks have said so by now; nobody waits. All bytes from `end` on have been
// seen; returns the first byte of which that holds now. By one warp.
__device__ __forceinline__ int leap_left(const Batch& batch, const Job& job, u32 run, int end) {
    constexpr int SIZE = TILE;
    const TileStates of{batch.tile_states, job.epoch, 0};
    int first = end;
    for (u32 n = 32; n == 32 && end - first < static_cast<int>(MAX_WALK);) {
        const int last = (first - 1) / SIZE, tile = last - static_cast<int>(lane_id());
        const u64 state = tile >= 0 ? of.states[tile] : 0;
        const u32 others = __ballot_sync(FULL, !of.is_there(state) || of.filled_of(state) != run + 1);
        n = others ? __ffs(others) - 1 : 32;
        if (n) first = (last + 1 - static_cast<int>(n)) * SIZE;
    }
    return first;
}

// The window to look at when all bytes from `end` on have been seen.
__device__ __forceinline__ int window_before(int end) { return end - static_cast<int>((LEFT_WORD + 1) * 32); }

__device__ __forceinline__ void step_left(Walk& walk, const Planes& m, const Runs& runs, const Batch& batch,
                                          const Job& job) {
    constexpr u32 inner = (2u << LEFT_WORD) - 2;  // words 1 to LEFT_WORD
    bool further = (words_of(m, walk.run) & inner) == inner;
    u32 in_lane = lane_id() && lane_id() <= LEFT_WORD ? __popc(m.number & m.lead) : 0;
    u32 n_digits = further ? warp_sum(in_lane) : __shfl_sync(FULL, runs.phase_count, LEFT_WORD);
    bool claimed = has_position(runs.claimed, (LEFT_WORD + 1) * 32),
         tail = has_position(runs.tail, (LEFT_WORD + 1) * 32);
    const int end = walk.window_start + 32, first = further ? leap_left(batch, job, walk.run, end) : end;
    __syncwarp();  // all lanes have read what one of them writes now
    if (lane_id()) return;
    walk.n_digits = (walk.n_digits + n_digits + static_cast<u32>(end - first)) % 3;
    walk.n_steps += static_cast<u32>(end - first) / LEFT_STEP;
    int own = job.tile_start - static_cast<int>(HALO_LEFT);
    if (further && walk.n_steps < MAX_STEPS) return go(walk, LEFT, window_before(first), {});
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
    if (mode == LEFT) return step_left(walk, m, runs, batch, job);
    if (mode == RIGHT) return step_right(walk, m, last_window, batch, job);

    u32 blanks_begin = mode == OWN && walk.knows_right ? WINDOW : last_blanks(m);
    u32 sure = sure_end(sh, t, m, runs, blanks_begin);
    if (mode == END) return step_end(walk, first_start_from(start, HALO_LEFT, sure, n_live, last_window));

    const OwnRuns own = HAS_FAR_FACTS && !walk.knows_left ? own_runs(m) : OwnRuns{3, 3};
    const u32 run = own.halo;
    if (own.tile != 3 && lane_id() == 0) tell_run(walk, batch, job, own.tile);
    bool needs_right = HAS_FAR_FACTS && !last_window && blanks_begin <= TILE_END;
    u32 end = walk.knows_end ? walk.end : first_start_from(start, TILE_END, sure, n_live, last_window);
    bool claimed = has_position(runs.claimed, TILE), tail = has_position(runs.tail, TILE);
    if (run == 3 && !needs_right && end != NOT_FOUND) {
        sh.start[lane_id()] = start;
        check_borders(sh, m, batch, job, window_start);
    }
    // The halo's second word belongs to what the phase is counted from.
    const int seen = window_start + 32, first = run == 3 ? seen : leap_left(batch, job, run, seen);
    __syncwarp();
    if (lane_id()) return;
    if (run != 3) {
        walk.run = run;
        walk.n_digits = static_cast<u32>(seen - first);
        walk.n_steps = static_cast<u32>(seen - first) / LEFT_STEP;
        go(walk, LEFT, window_before(first), {});
    } else if (needs_right) {
        go(walk, RIGHT, window_start + static_cast<int>(LEFT_STEP), {});
    } else if (end == NOT_FOUND) {
        go(walk, END, window_start + static_cast<int>(TILE), {claimed, tail, 0, 0});
    } else {
        walk.end = end;
        walk.mode = DONE;
    }
}
