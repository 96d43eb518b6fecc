// Stages 1 to 3 for BPE over characters: added tokens, runs of them, and cuts between characters that no rule can join.
//
//   text     t h e _ c a t \n \n \t a b      added tokens \n and \n\n, \t and so on; `_` is the plain space
//   joins    . 1 1 1 . 1 1  .  .  .  . 1     a rule has a left part ending in the character before and a right part beginning with
//   run      . . . . . . .  1  1  1  . .     this one (gpu_core/character_bpe.py)
//   same     . . . . . . .  .  1  .  . .     the run goes on
//   start    1 . . . 1 . .  1  .  1  1 .
//
// A cut depends on two characters, so nothing is carried from afar but the length of a run that begins before the window: of 32 line
// ends, where tokens of up to 31 exist, the last one is a token of its own.
#pragma once

#include "literals.cuh"
#include "walk.cuh"

// What the code planes of this family say about the first byte of a character.
enum BridgePlane : u32 { JOINS, RUN, SAME };

// Bits of an entry of `ascii`: the number of the run of an ASCII character, from 1 on; the character alone is none; a longer
// character of a run may begin.
constexpr u32 RUN_NUMBER = 0x0f, RUN_OF_SEVERAL = 0x10, RUN_MAY_BEGIN = 0x40;
constexpr u32 RUN_OF_TEXT = 1u << 31;  // in the row of a run, beside the shortest: blanks that merge by themselves
constexpr u32 MAX_TEXT_RUN = 32;       // blanks of the longest token; where they end decides whether they are one
constexpr u32 BLANK_BYTES = 0x8196e2;
constexpr u32 PAIR_SHIFT = 32 - 20;  // the bits of `pair_bits` are numbered by 20 bits
constexpr u32 BLANK_CHARACTER = 0x2581;

__device__ __forceinline__ u32 as_raw(u32 code) { return code == BLANK_CHARACTER ? ' ' : code; }

__device__ __forceinline__ bool ascii_joins(const Tables& t, u32 x, u32 y) {
    return __ldg(&t.ascii_pairs[x * 4 + (y >> 5)]) >> (y & 31u) & 1u;
}

// Whether a token may lie across two neighbours; it may say so too often, and a component is only larger then.
__device__ __forceinline__ bool joins_pair(const Tables& t, u32 x, u32 y) {
    x = as_raw(x);
    y = as_raw(y);
    if (x < 0x80 && y < 0x80) return ascii_joins(t, x, y);
    u32 at = (x * t.pair_a + y * t.pair_b) >> PAIR_SHIFT;
    return __ldg(&t.pair_bits[at >> 5]) >> (at & 31u) & 1u;
}

// The run of a character, from 1 on; 0 = none.
__device__ __forceinline__ u32 run_of(const Tables& t, u32 code) {
    for (u32 n = 0; n < t.n_runs; ++n) {
        if (__ldg(&t.runs[n]).x == code) return n + 1;
    }
    return 0;
}

// Whether a border between documents cuts the character of n bytes at a position.
__device__ __forceinline__ bool is_cut(const Shared& sh, u32 position, u32 n) {
    u32 word = (position + 1) >> 5;
    u32 above = word + 1 < WORDS ? sh.document_border[word + 1] : 0;
    u32 bits = word < WORDS ? __funnelshift_r(sh.document_border[word], above, (position + 1) & 31u) : 0;
    return (bits & bits_below(n - 1)) != 0;
}

// What a byte and the one before it tell, when one of them is not ASCII or the one before is not in sight.
struct Neighbour {
    bool joins, run, same, fault;
};

__device__ __forceinline__ Neighbour wide_neighbour(const Shared& sh, const Tables& t, u32 position, u32 entry) {
    u32 back = (byte_at(sh, position) & 0xc0) == 0x80 ? bytes_to_lead(sh, position) : 0;
    u32 code = back < 4 && back <= position ? decode_at(sh, position - back) : INVALID;
    if (code == INVALID || back >= n_bytes_of(code)) return {false, false, false, true};
    bool fault = is_cut(sh, position - back, n_bytes_of(code));
    if (back) return {false, false, false, fault};
    bool run = code < 0x80 ? (entry & RUN_NUMBER) != 0 : (entry & RUN_MAY_BEGIN) && run_of(t, code);
    bool has_company = !(entry & RUN_OF_SEVERAL) || byte_at(sh, position + 1) == code;
    u32 before = position - 1;
    if (position && (byte_at(sh, before) & 0xc0) == 0x80) before -= bytes_to_lead(sh, before);
    // A run at the window's first character may have begun before the window.
    if (before >= WINDOW) return {false, run, run, fault};
    u32 code_before = decode_at(sh, before);
    if (code_before == INVALID) return {false, run && has_company, false, fault};
    return {joins_pair(t, code_before, code), run && has_company, run && code_before == code, fault};
}

// Bit planes of the window; every warp takes each eighth word. Ends with a barrier.
__device__ __forceinline__ void classify_characters(Shared& sh, const Tables& t, const Batch& batch, const Job& job,
                                                    int window_start) {
    for (u32 word = warp_id(); word < WORDS; word += N_WARPS) {
        u32 position = word * 32 + lane_id();
        int at = window_start + static_cast<int>(position);
        bool live = at >= 0 && at < static_cast<int>(job.n_bytes);
        u32 byte = byte_at(sh, position), before = position ? byte_at(sh, position - 1) : 0xff;
        u32 entry = live ? __ldg(&t.ascii[byte]) : 0;
        Neighbour known = {false, false, false, false};
        if (live && (byte | before) < 0x80) {
            known.joins = ascii_joins(t, before, byte);
            known.same = (entry & RUN_NUMBER) && byte == before;
            known.run = (entry & RUN_NUMBER) &&
                        (!(entry & RUN_OF_SEVERAL) || byte == before || byte == byte_at(sh, position + 1));
        } else if (live) {
            known = wide_neighbour(sh, t, position, entry);
        }
        // Other windows than the tile's own may cut its characters.
        bool own = job.is_own(window_start) && position >= HALO_LEFT && position < TILE_END;
        if (known.fault && own) flag_document(batch, job, at, INVALID_UTF8);
        bool candidate = false;
        if (entry & 0x80) {
            u32 pair = byte << 8 | byte_at(sh, position + 1);
            candidate = __ldg(&t.literal_bigrams[pair >> 5]) >> (pair & 31u) & 1u;
        }
        u32 lead = __ballot_sync(FULL, live && (byte & 0xc0) != 0x80);
        u32 candidates = __ballot_sync(FULL, candidate);
        u32 joins = __ballot_sync(FULL, known.joins), run = __ballot_sync(FULL, known.run);
        u32 same = __ballot_sync(FULL, known.same);
        if (lane_id() == 0) {
            u32 seen = ~sh.document_border[word];
            sh.lead[word] = lead;
            sh.candidate[word] = candidates;
            sh.code[JOINS][word] = joins & seen;
            sh.code[RUN][word] = run;
            sh.code[SAME][word] = same & seen;
            if (candidates) sh.any_candidate = 1;
            if (run) sh.any_run = 1;
        }
    }
    __syncthreads();
}

// Behind the last character of a run; WINDOW if it reaches the window's end.
__device__ __forceinline__ u32 end_of_run(const Shared& sh, u32 position) {
    u32 word = position >> 5, unseen = bits_below((position & 31u) + 1);
    u32 stops = 0;
    for (; word < WORDS; ++word, unseen = 0) {
        stops = ((sh.lead[word] & ~sh.code[SAME][word]) | sh.document_border[word]) & ~unseen;
        if (stops) return word * 32 + __ffs(stops) - 1;
    }
    return WINDOW;
}

// Whether a U+2581 of the text itself stands at a position. The model cannot tell it from a blank, but runs of blanks are told.
__device__ __forceinline__ bool is_blank_character(const Shared& sh, u32 position) {
    return (word_at(sh, position) & 0xffffff) == BLANK_BYTES;
}

// The tokens of a run in the window: pieces of the largest length from its first character on, `before` of which lie before the
// position, and one of what is left; less than the shortest is text. Lane `first` of `step` lanes that share the work.
__device__ __forceinline__ void mark_run(Shared& sh, const Tables& t, u32 position, u32 before, u32 first, u32 step) {
    u32 code = decode_at(sh, position), width = n_bytes_of(code), end = end_of_run(sh, position);
    const uint4 run = __ldg(&t.runs[run_of(t, code) - 1]);
    u32 shortest = run.y & ~RUN_OF_TEXT, longest = run.z, total = before + (end - position + width - 1) / width;
    bool goes_on = false;
    if (run.y & RUN_OF_TEXT) {
        bool seen = !before && position >= 3 && !bit_at(sh.document_border, position);
        if (seen && is_blank_character(sh, position - 3)) return;
        goes_on = end < WINDOW && !bit_at(sh.document_border, end) && is_blank_character(sh, end);
    }
    for (u32 begin = first * longest; begin < total; begin += step * longest) {
        u32 length = min(longest, total - begin);
        if (length < shortest || (goes_on && length < longest)) return;
        u32 from = position + (max(begin, before) - before) * width;
        u32 to = min(position + (begin + length - before) * width, WINDOW);
        set_bits(sh.literal, from, to - from);
        if (to < WINDOW) set_bits(sh.literal_end, to, 1);
        if (begin < before) continue;
        set_bits(sh.literal_start, from, 1);
        sh.symbol[from] = __ldg(&t.run_ids[run.w + length - shortest]);
    }
}

constexpr u32 RUN_LOADS = 4,
              RUN_ITEMS = 32 * RUN_LOADS;  // loads of 16 bytes that a lane, and a warp, have on their way

// The bytes of a run, its character again and again. A phase is the number of a byte in the character.
struct RunBytes {
    u64 repeated;
    u32 width;

    __device__ __forceinline__ u32 word(u32 phase) const { return static_cast<u32>(repeated >> (8 * phase)); }
    // The phase 4 bytes further; it is also that 512 bytes before.
    __device__ __forceinline__ u32 next(u32 phase) const {
        if (width != 3) return phase;
        return phase == 2 ? 0 : phase + 1;
    }
    // The phase at a place of the text, if a character begins at `at`.
    __device__ __forceinline__ u32 phase(u32 place, u32 at) const { return (place + width - at % width) % width; }

    __device__ __forceinline__ bool covers(const uint4& bytes, u32 phase) const {
        u32 second = next(phase), third = next(second);
        return ((bytes.x ^ word(phase)) | (bytes.y ^ word(second)) | (bytes.z ^ word(third)) |
                (bytes.w ^ word(phase))) == 0;
    }
    // Behind the last byte of an item that does not go on towards `at`, plus 1; 0 when all do. `floor`: where the document begins.
    __device__ __forceinline__ u32 stop_in(const uint4& bytes, u32 item, u32 at, u32 floor) const {
        u32 begin = item * 16, stop = begin <= floor ? floor + 1 : 0;
        const u32 words[4] = {bytes.x, bytes.y, bytes.z, bytes.w};
        for (u32 k = 0; k < 4; ++k) {
            u32 place = begin + 4 * k, other = words[k] ^ word(phase(place, at));
            if (place + 4 > at) other &= place < at ? bits_below((at - place) * 8) : 0;
            if (other) stop = max(stop, place + 4 - (__clz(other) >> 3) + 1);
        }
        return stop;
    }
};

// The items of a warp up to `last`, the next lane's before this one's.
__device__ __forceinline__ void load_items(const Batch& batch, int last, uint4 (&held)[RUN_LOADS]) {
    const uint4* items = reinterpret_cast<const uint4*>(batch.text);
    for (u32 k = 0; k < RUN_LOADS; ++k) {
        int item = last - static_cast<int>(32 * k + lane_id());
        held[k] = item >= 0 ? items[item] : make_uint4(0, 0, 0, 0);
    }
}

// How many characters of a run stand before a place of the text, which is in it; NOT_FOUND beyond MAX_WALK. By one warp. Every tile of a
// long run walks to its beginning, so what is no end is leapt over. `after_blank`: whether a U+2581 stands before the run.
__device__ __forceinline__ u32 characters_before(const Batch& batch, const Job& job, u32 at, u32 bytes, u32 width,
                                                 bool& after_blank) {
    u32 floor = 0;
    await_text(batch, job.epoch, job.n_bytes, job.n_documents, 0, at);
    if (job.n_documents > 1) {
        floor = batch.document_starts[first_from(batch.document_starts, job.n_documents, at) - 1];
    }
    RunBytes run{bytes, width};
    for (u32 n = width; n < 8; n *= 2) run.repeated |= run.repeated << (8 * n);
    uint4 held[RUN_LOADS];
    int last = static_cast<int>((at - 1) / 16);
    while (at - last * 16 <= MAX_WALK) {
        load_items(batch, last, held);
        u32 stop = 0;
        for (u32 k = 0; k < RUN_LOADS; ++k) {
            int item = last - static_cast<int>(32 * k + lane_id());
            if (item >= 0) stop = max(stop, run.stop_in(held[k], item, at, floor));
        }
        stop = __reduce_max_sync(FULL, stop);
        if (stop) {
            u32 n = (at - (stop - 1)) / width, begin = at - n * width;
            const u8* b = batch.text + begin;
            after_blank = begin >= floor + 3 && (b[-3] | b[-2] << 8 | b[-1] << 16) == BLANK_BYTES;
            return n;
        }
        last -= RUN_ITEMS;
        const int lowest =
            static_cast<int>(floor / 16 + RUN_ITEMS);  // above it, no item holds the document's beginning
        u32 phase = run.phase((last - static_cast<int>(lane_id())) * 16, at);
        while (last > lowest && at - last * 16 <= MAX_WALK) {
            load_items(batch, last, held);
            bool covered = true;
            for (u32 k = 0; k < RUN_LOADS; ++k, phase = run.next(phase)) covered &= run.covers(held[k], phase);
            if (__any_sync(FULL, !covered)) break;
            last -= RUN_ITEMS;
        }
    }
    return NOT_FOUND;
}

// A run that comes from before the window. By one warp.
__device__ __forceinline__ void enter_run(Shared& sh, const Tables& t, const Batch& batch, const Job& job,
                                          int window_start) {
    if (!sh.lead[0]) return;
    u32 position = __ffs(sh.lead[0]) - 1;
    if (!bit_at(sh.code[RUN], position) || !bit_at(sh.code[SAME], position)) return;
    u32 before = 0;
    // What begins in the left halo does not matter, but for what it leaves of the tile.
    if (end_of_run(sh, position) >= HALO_LEFT) {
        u32 at = window_start + position, code = decode_at(sh, position), width = n_bytes_of(code);
        const uint4 run = __ldg(&t.runs[run_of(t, code) - 1]);
        bool after_blank = false;
        before = characters_before(batch, job, at, word_at(sh, position) & bits_below(width * 8), width, after_blank);
        if (before == NOT_FOUND && lane_id() == 0) flag_document(batch, job, at, LONG_WALK);
        if (after_blank && (run.y & RUN_OF_TEXT)) return;
        before %= run.z;
    }
    mark_run(sh, t, position, before, lane_id(), 32);
}

// All runs of the window. Ends with a barrier when there was one.
__device__ __forceinline__ void match_runs(Shared& sh, const Tables& t, const Batch& batch, const Job& job,
                                           int window_start) {
    if (!sh.any_run) return;
    if (warp_id() == 0) enter_run(sh, t, batch, job, window_start);
    for (u32 position = threadIdx.x; position < WINDOW; position += THREADS) {
        if (bit_at(sh.code[RUN], position) && !bit_at(sh.code[SAME], position)) mark_run(sh, t, position, 0, 0, 1);
    }
    __syncthreads();
}

// One look at a window by the first warp: the starts, and where the tile's last component ends.
__device__ __forceinline__ void look_at_components(Shared& sh, const Tables& t, const Job& job) {
    Walk& walk = sh.walk;
    u32 lane = lane_id(), mode = walk.mode;
    int left = static_cast<int>(job.n_bytes) - walk.window_start;
    bool last_window = left <= static_cast<int>(WINDOW);
    u32 n_live = last_window ? left : WINDOW;
    u32 live = n_live > lane * 32 ? bits_below(n_live - lane * 32) : 0;
    u32 begins = (sh.lead[lane] & ~sh.code[JOINS][lane]) | sh.document_border[lane] | sh.literal_end[lane];
    u32 start = ((begins & ~sh.literal[lane]) | sh.literal_start[lane]) & live;
    u32 late = WINDOW - t.max_literal;
    u32 sure = min(SURE - MAX_TEXT_RUN,
                   lowest_position(sh.candidate[lane] & ~(late > lane * 32 ? bits_below(late - lane * 32) : 0)));
    if (mode == END) return step_end(walk, first_start_from(start, HALO_LEFT, sure, n_live, last_window));
    u32 end = walk.knows_end ? walk.end : first_start_from(start, TILE_END, sure, n_live, last_window);
    if (end != NOT_FOUND) sh.start[lane] = start;
    __syncwarp();
    if (lane) return;
    if (end == NOT_FOUND) {
        go(walk, END, walk.window_start + static_cast<int>(TILE), {});
    } else {
        walk.end = end;
        walk.mode = DONE;
    }
}

// Classes, added tokens and starts of a window.
__device__ __forceinline__ void split_components(Shared& sh, const Tables& t, const Batch& batch, const Job& job,
                                                 int window_start) {
    classify_characters(sh, t, batch, job, window_start);
    match_literals(sh, t, batch, job, window_start);
    match_runs(sh, t, batch, job, window_start);
    if (warp_id() == 0) look_at_components(sh, t, job);
}
