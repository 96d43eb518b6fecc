// Stage 1: a window of text becomes bit planes, one bit for each byte, one 32-bit word for each lane of a warp.
//
//   text     d o n ' t _ é            é is two bytes: its second one has the class of the first, and no lead bit
//   lead     1 1 1 1 1 1 1 0
//   code     L L L O L P L L          as 4 planes of code bits
//   one      0 0 0 1 0 0 0 0          an apostrophe that a one-byte contraction follows
#pragma once

#include "fetch.cuh"
#include "hash.cuh"
#include "search.cuh"

// Class codes in the order of gpu_core/classes.py.
enum ClassCode : u32 { NONE, LETTER, NUMBER, NEWLINE, PLAIN_SPACE, BLANK, OTHER, PUNCTUATION, CJK };

constexpr u32 CL100K = 1, QWEN2 = 2, GPT2 = 3, DEEPSEEK = 4, BRIDGE = 5;
#ifndef SIDETOK_NFC
#define SIDETOK_NFC 0
#endif
#ifndef SIDETOK_RANK_IDS
#define SIDETOK_RANK_IDS 0
#endif
constexpr u32 FAMILY = SIDETOK_FAMILY;
constexpr bool FOLDS_CASE = FAMILY == CL100K || FAMILY == QWEN2;
constexpr bool HAS_CHARACTERS = FAMILY == BRIDGE;     // symbols are characters, not bytes
constexpr bool HAS_RANK_IDS = SIDETOK_RANK_IDS != 0;  // orders are ranks; slots hold the products
constexpr bool HAS_CONTRACTIONS = FAMILY != DEEPSEEK;
constexpr u32 N_CODE_PLANES = FAMILY == DEEPSEEK ? 4 : 3;

enum Mode : u32 { OWN, LEFT, RIGHT, END, DONE };
enum Run : u32 { NEWLINES, DIGITS, TAIL };

// What may come from far beyond the window; see split.cuh.
struct Facts {
    u32 claimed, tail, phase, ahead;
};

// Which window a block looks at, and what it has learned about its own one. See walk.cuh.
struct Walk {
    u32 mode;
    int window_start;
    Facts own, current;
    u32 knows_left, knows_right, knows_end;
    u32 run;      // kind of the run that is followed to the left
    u32 n_steps;  // windows seen on this walk
    u32 n_digits;
    u32 filled;  // by the kind of run that the tile is nothing but, + 1; or 0
    u32 end;     // position behind the tile's last pre-token; 0 = further than MAX_PRETOKEN
};

// Everything that a block shares. Positions are positions in the window; those of long pre-tokens run on behind it.
struct Shared {
    u32 text[ARENA / 4 + 4];
    u32 symbol[ARENA];  // id of the token that begins at a byte
    u32 order[ARENA];   // order of the pair that begins at a byte; in the end: positions of the tokens, closed up
    u32 product[HAS_RANK_IDS ? ARENA : 1];  // of that pair, when its order does not hold it
    u32 code[N_CODE_PLANES][WORDS];
    u32 lead[WORDS], one[WORDS], two[WORDS], a_to_z[WORDS], ascii_punctuation[WORDS];
    u32 candidate[WORDS];        // an added token may begin here
    u32 document_border[WORDS];  // first bytes of documents, and the end of the text
    u32 literal[WORDS], literal_start[WORDS], literal_end[WORDS];
    u32 start[WORDS], start_rank[WORDS];
    u32 token[ARENA_WORDS], token_rank[ARENA_WORDS], selected[ARENA_WORDS];
    u16 pretoken[TILE + 2];
    u16 small_miss[TILE / 2 + 2], large_miss[TILE / 16 + 4], long_miss[TILE / 64 + 3];
    u32 n_miss[5];
    u32 next_work;
    u32 any_candidate, any_run;
    u32 first_document;
    Walk walk;
    Header header;
    u32 n_pretokens;
    u32 base, n_tokens;
    u32 tells_reasons;
};

// One block's constants.
struct Job {
    u32 n_bytes, n_documents, flags;
    u64 epoch;
    u32 tile;
    int tile_start;  // in the text

    __device__ __forceinline__ bool is_own(int window_start) const {
        return window_start == tile_start - static_cast<int>(HALO_LEFT);
    }
};

__device__ __forceinline__ u32 byte_at(const Shared& sh, u32 position) {
    return reinterpret_cast<const u8*>(sh.text)[position];
}

// Four bytes from any position.
__device__ __forceinline__ u32 word_at(const Shared& sh, u32 position) {
    u32 index = position >> 2;
    return __funnelshift_r(sh.text[index], sh.text[index + 1], (position & 3u) * 8u);
}

__device__ __forceinline__ bool bit_at(const u32* plane, u32 position) {
    return plane[position >> 5] >> (position & 31u) & 1u;
}

// Marks the document that holds a byte of the text; one thread, rare. Takes no struct: that would have to lie in memory.
__device__ __noinline__ void flag_at(const u32* starts, u32* flags, Control* control, u32 n_documents, u64 epoch,
                                     u32 position, u32 reason) {
    u32 low = 0, high = n_documents;  // starts[low] <= position < starts[high]
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (starts[middle] <= position) {
            low = middle;
        } else {
            high = middle;
        }
    }
    // Up to a million bytes of a document say the same.
    const u32 word = static_cast<u32>(epoch << EPOCH_SHIFT) | reason;
    if (flags[low] != word) flags[low] = word;
    if (!(*const_cast<volatile u64*>(&control->sums) & SUM_FLAGGED)) atomicOr(&control->sums, SUM_FLAGGED);
}

__device__ __forceinline__ void flag_document(const Batch& batch, const Job& job, u32 position, u32 reason) {
    flag_at(batch.document_starts, batch.document_flags, batch.control, job.n_documents, job.epoch, position, reason);
}

// What is text of the four bytes at a place; the others are 0.
__device__ __forceinline__ u32 live_part(const Job& job, int at, u32 word) {
    int left = static_cast<int>(job.n_bytes) - at;
    return at < 0 || left <= 0 ? 0 : left < 4 ? word & bits_below(left * 8) : word;
}

// Four bytes of the text; what is not text is 0.
__device__ __forceinline__ u32 load_word(const Batch& batch, const Job& job, int at) {
    if (at < 0 || at >= static_cast<int>(job.n_bytes)) return 0;
    return live_part(job, at, reinterpret_cast<const u32*>(batch.text)[at >> 2]);
}

constexpr u32 EARLY_TILES = 5;  // 4 KiB: of longer text the blocks read a copy on the device

// Bytes of the tile's own window that are on their way together with the header: one way over the bus instead of two. Behind the live
// text lies anything.
__device__ __forceinline__ void load_early(Shared& sh, const Batch& batch, u32 tile) {
    const u32* words = reinterpret_cast<const u32*>(batch.text);
    const int first = static_cast<int>(tile * TILE) / 4 - static_cast<int>(HALO_LEFT / 4), own = threadIdx.x;
    sh.text[own] = first + own >= 0 ? words[first + own] : 0;
    if (own == 32) sh.text[WINDOW / 4] = words[first + static_cast<int>(WINDOW / 4)];
}

// Bytes of the window, cleared planes, and the borders between documents. Ends with a barrier. `early`: they were loaded before.
__device__ __forceinline__ void load_window(Shared& sh, const Batch& batch, const Job& job, int window_start,
                                            bool early) {
    if (batch.n_fetchers) {
        int end = window_start + static_cast<int>(WINDOW) + 4;
        if (warp_id() == 0) await_text(batch, job.epoch, job.n_bytes, job.n_documents, window_start, end);
        __syncthreads();
    }
    const int at = window_start + static_cast<int>(threadIdx.x) * 4, end = window_start + static_cast<int>(WINDOW);
    sh.text[threadIdx.x] = early ? live_part(job, at, sh.text[threadIdx.x]) : load_word(batch, job, at);
    // A character may reach out of the window.
    if (threadIdx.x == 32) {
        sh.text[WINDOW / 4] = early ? live_part(job, end, sh.text[WINDOW / 4]) : load_word(batch, job, end);
    }
    if (warp_id() == N_WARPS - 1) {
        u32 lane = lane_id();
        sh.document_border[lane] = sh.literal[lane] = sh.literal_start[lane] = sh.literal_end[lane] = 0;
        if (lane == 0) sh.any_candidate = sh.any_run = 0;
        u32 from = window_start > 0 ? window_start : 0;
        u32 first = job.n_documents <= 1 ? (from > 0 ? job.n_documents : 0)
                                         : first_from(batch.document_starts, job.n_documents, from);
        if (lane == 0) sh.first_document = first;
        __syncwarp();
        for (u32 document = first + lane; document <= job.n_documents; document += 32) {
            u32 start = document == 0 ? 0 : document == job.n_documents ? job.n_bytes : batch.document_starts[document];
            u32 position = start - window_start;
            if (position >= WINDOW) break;
            atomicOr(&sh.document_border[position >> 5], 1u << (position & 31u));
        }
    }
    __syncthreads();
}

constexpr u32 INVALID = 0xffffffffu;

// The code point whose first byte is at a position; INVALID unless it is well-formed.
__device__ __forceinline__ u32 decode_at(const Shared& sh, u32 position) {
    u32 raw = word_at(sh, position);
    u32 b0 = raw & 0xff, b1 = raw >> 8 & 0xff, b2 = raw >> 16 & 0xff, b3 = raw >> 24;
    bool c1 = (b1 & 0xc0) == 0x80, c2 = (b2 & 0xc0) == 0x80, c3 = (b3 & 0xc0) == 0x80;
    if (b0 < 0x80) return b0;
    if (b0 < 0xe0) return b0 >= 0xc2 && c1 ? (b0 & 0x1f) << 6 | (b1 & 0x3f) : INVALID;
    if (b0 < 0xf0) {
        u32 code = (b0 & 0x0f) << 12 | (b1 & 0x3f) << 6 | (b2 & 0x3f);
        return c1 && c2 && code >= 0x800 && (code < 0xd800 || code > 0xdfff) ? code : INVALID;
    }
    u32 code = (b0 & 0x07) << 18 | (b1 & 0x3f) << 12 | (b2 & 0x3f) << 6 | (b3 & 0x3f);
    return b0 < 0xf5 && c1 && c2 && c3 && code >= 0x10000 && code < 0x110000 ? code : INVALID;
}

__device__ __forceinline__ u32 n_bytes_of(u32 code) {
    return code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
}

// How many bytes before a continuation byte its character begins: 1 to 3, or 4 when there is no beginning.
__device__ __forceinline__ u32 bytes_to_lead(const Shared& sh, u32 position) {
    u32 back = 1;
    while (back < 4 && back <= position && (byte_at(sh, position - back) & 0xc0) == 0x80) ++back;
    return back;
}

__device__ __forceinline__ u32 nfc_class(const Tables& t, u32 code) {
    return __ldg(&t.nfc_blocks[__ldg(&t.nfc_pages[code >> 8]) * 256 + (code & 255)]);
}

// Whether normalization may change the character at a position: it is not "yes" in the quick check, or a mark out of order.
__device__ __forceinline__ bool may_change(const Shared& sh, const Tables& t, u32 position, u32 code) {
    u32 own = nfc_class(t, code);
    if (own == 0 || own == 255 || position == 0) return own == 255;
    u32 before = position - 1;
    if ((byte_at(sh, before) & 0xc0) == 0x80) before -= min(bytes_to_lead(sh, before), before);
    u32 code_before = decode_at(sh, before);
    if (code_before == INVALID) return false;
    u32 other = nfc_class(t, code_before);
    return other != 255 && other > own;
}

// Class code of a byte that is not ASCII. `fault` gets the reason why its document needs the CPU, if there is one.
__device__ __forceinline__ u32 wide_class(const Shared& sh, const Tables& t, u32 flags, u32 position, u32 byte,
                                          u32& fault) {
    u32 back = (byte & 0xc0) == 0x80 ? bytes_to_lead(sh, position) : 0;
    u32 code = back < 4 && back <= position ? decode_at(sh, position - back) : INVALID;
    if (code == INVALID || back >= n_bytes_of(code)) {
        fault = INVALID_UTF8;
        return NONE;
    }
    bool doubtful = SIDETOK_NFC && !(flags & FLAG_NORMAL_FORM) && back == 0;
    if (doubtful && may_change(sh, t, position, code)) fault = NOT_NORMAL;
    return __ldg(&t.class_blocks[__ldg(&t.class_pages[code >> 8]) * 256 + (code & 255)]);
}

// Length in bytes of the letters of a contraction after an apostrophe, 0 when there is none.
__device__ __forceinline__ u32 contraction_length(const Shared& sh, u32 position) {
    u32 raw = word_at(sh, position) >> 8;
    if (FOLDS_CASE && (raw & 0xffff) == 0xbfc5) return 2;  // U+017F folds to s
    if (FOLDS_CASE) raw |= (raw & 0x4040) >> 1;  // letters to lower case; other bytes become no letter of these
    u32 first = raw & 0xff, second = raw >> 8 & 0xff;
    if (first == 's' || first == 't' || first == 'm' || first == 'd') return 1;
    bool two = second == 'e' ? first == 'r' || first == 'v' : second == 'l' && first == 'l';
    return two ? 2 : 0;
}

// Bit planes of the window; every warp takes each eighth word. Ends with a barrier.
__device__ __forceinline__ void classify_window(Shared& sh, const Tables& t, const Batch& batch, const Job& job,
                                                int window_start) {
    for (u32 word = warp_id(); word < WORDS; word += N_WARPS) {
        u32 position = word * 32 + lane_id();
        int at = window_start + static_cast<int>(position);
        bool live = at >= 0 && at < static_cast<int>(job.n_bytes);
        u32 byte = byte_at(sh, position);
        u32 entry = live ? __ldg(&t.ascii[byte]) : 0;
        u32 code = entry & 0x7f, fault = 0;
        if (live && byte >= 0x80) code = wide_class(sh, t, job.flags, position, byte, fault);
        // Other windows than the tile's own may cut its characters.
        bool own = job.is_own(window_start) && position >= HALO_LEFT && position < TILE_END;
        if (fault && own) flag_document(batch, job, at, fault);
        bool candidate = false;
        if (entry & 0x80) {
            u32 pair = byte << 8 | byte_at(sh, position + 1);
            candidate = __ldg(&t.literal_bigrams[pair >> 5]) >> (pair & 31u) & 1u;
        }
        u32 length = HAS_CONTRACTIONS && live && byte == '\'' ? contraction_length(sh, position) : 0;
        u32 lead = __ballot_sync(FULL, live && (byte & 0xc0) != 0x80);
        u32 candidates = __ballot_sync(FULL, candidate);
        u32 planes[N_CODE_PLANES];
        for (u32 plane = 0; plane < N_CODE_PLANES; ++plane) planes[plane] = __ballot_sync(FULL, code >> plane & 1u);
        u32 one = 0, two = 0;
        if (HAS_CONTRACTIONS) {
            one = __ballot_sync(FULL, length == 1);
            two = __ballot_sync(FULL, length == 2);
        } else {
            u32 lower = byte | 0x20;
            bool is_letter = lower >= 'a' && lower <= 'z';
            bool is_digit = byte >= '0' && byte <= '9';
            one = __ballot_sync(FULL, live && is_letter);
            two = __ballot_sync(FULL, live && byte > ' ' && byte < 0x7f && !is_letter && !is_digit);
        }
        if (lane_id() == 0) {
            sh.lead[word] = lead;
            sh.candidate[word] = candidates;
            if (candidates) sh.any_candidate = 1;
            for (u32 plane = 0; plane < N_CODE_PLANES; ++plane) sh.code[plane][word] = planes[plane];
            (HAS_CONTRACTIONS ? sh.one : sh.a_to_z)[word] = one;
            (HAS_CONTRACTIONS ? sh.two : sh.ascii_punctuation)[word] = two;
        }
    }
    __syncthreads();
}
