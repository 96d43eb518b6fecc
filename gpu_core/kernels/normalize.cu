// Text in normal form (NFC): the text of all documents of a replay once more, with every segment that NFC may change in its normal form,
// for a replay behind this kernel that leaves out the quick check.
//
//   text        C a f e ◌́ _ n o      ◌́ has two bytes
//   segments    C a f e◌́  _ n o      a character without a class and those with one that follow it; never across documents
//   doubtful    0 0 0 1 1 0 0 0 0      a character that may change, or a mark out of order: a bit at its first byte
//   length      1 1 1 2 0 0 1 1 1      bytes that go to where each byte goes
//   result      C a f é   _ n o      é has two bytes
//
// A block owns the segments that start in its tile: it counts their bytes, looks back over the blocks before it (look_back.cuh), and writes
// them once, side by side. Nothing in NFC reaches back over a character without a class, so segments are independent (normal_form.cuh).
// A byte that belongs to no character is a segment of its own.
//
// What cannot be done flags its document, for the replay behind this kernel, and stays as it is: a long segment, and one that could make or
// break an added token. Added tokens are found in the raw text, and each gap between them is normalized by itself. All of them are ASCII,
// and an ASCII character begins a segment. So they are the same in the result, at the same places, if
//
// * no character of an added token comes into being (of U+212A, K): then the occurrences in the result are occurrences in the text, for
//   two of its characters that stand side by side in the result did so before;
// * no character that ends an added token is composed with what follows: the others of an occurrence are followed by ASCII, and are
//   segments by themselves. The gap behind it begins with the marks of its last character, which compose as they do without it.
#include "id_tiles.cuh"
#include "normal_form.cuh"
#include "search.cuh"

constexpr u32 WINDOW = 1024, WORDS = WINDOW / 32, HALO = 128;
constexpr u32 TILE = WINDOW - 2 * HALO, TILE_END = HALO + TILE;  // as a position in the window
constexpr u32 LINE = 128;  // bytes; the text of a tile begins at the same place of a line in both memories
constexpr u32 STAGE = MAX_GROWTH * (TILE + MAX_SEGMENT) + LINE;
constexpr u32 REWRITTEN = 128;  // in a length: the bytes are a normal form
constexpr u32 FLAG_NORMAL_FORM = 4, NOT_NORMAL = 3, EPOCH_SHIFT = 4;
constexpr u32 SUM_BYTES_SHIFT = 20;
constexpr u64 SUM_FLAGGED = 1ull << 63;
static_assert(WINDOW == TILE_IDS, "each thread adds up four bytes");
static_assert(HALO >= MAX_SEGMENT + 8, "characters that the window cuts are no part of a segment of the tile");

struct Header {
    u64 epoch;
    u32 n_bytes, n_documents;
    u32 flags;
    u32 reserved;
};

struct Control {
    u64 sums;  // over the blocks of a launch: how many are done, and their bytes; the last one clears it
};

struct Batch {
    // What a replay read.
    const u8* source_text;
    const u32* source_starts;
    // What the next one reads.
    u8* text;
    u32* document_starts;
    Header* header;
    // Where that one flags documents.
    u32* document_flags;
    u64* encode_control;
    u64* states;
    Control* control;
};

struct Job {
    u64 epoch;  // of the next replay, as are the flags
    u32 n_bytes, n_documents;
    u32 flags;
    u32 capacity;
};

// Positions are positions in the window. Planes have one bit for each byte.
struct Shared {
    u32 text[WINDOW / 4 + 1];
    u32 classes[WINDOW / 4];  // a byte each: class of the character that ends here
    u32 lengths[WINDOW / 4];  // a byte each
    u32 border[WORDS + 1];    // first bytes of documents
    u32 at_least[3][WORDS];   // first bytes of characters of at least two, three, four bytes
    u32 inside[WORDS];        // their other bytes
    u32 opens[WORDS];         // first bytes of segments, and the end of the text
    u32 doubtful[WORDS];
    u8 forms[MAX_GROWTH * TILE + MAX_RESULT];  // what begins at a byte of the tile lies at three times its number
    uint4 stage[(STAGE + 15) / 16];
    Tile tile;
    u32 base, first_document;
    u32 is_last, n_result_bytes;
};

__device__ __forceinline__ bool bit_at(const u32* plane, u32 position) {
    return plane[position >> 5] >> (position & 31u) & 1u;
}

// First of the positions [from, to) with a bit, or `to`.
__device__ __forceinline__ u32 first_bit(const u32* plane, u32 from, u32 to) {
    while (from < to) {
        const u32 bits = plane[from >> 5] & ~bits_below(from & 31u);
        if (bits) return min(to, (from & ~31u) + __ffs(bits) - 1);
        from = (from & ~31u) + 32;
    }
    return to;
}

// Last of the positions [from, to] with a bit, or FULL.
__device__ __forceinline__ u32 last_bit(const u32* plane, u32 from, u32 to) {
    for (u32 word = to >> 5, seen = bits_below((to & 31u) + 1);; --word, seen = FULL) {
        const u32 bits = plane[word] & seen;
        if (bits) return word * 32 + highest_bit(bits) >= from ? word * 32 + highest_bit(bits) : FULL;
        if (word <= from >> 5) return FULL;
    }
}

// Where a document begins; the list may be short of what needs no list.
__device__ __forceinline__ u32 source_start(const Batch& batch, const Job& job, u32 document) {
    return document == 0 ? 0 : document == job.n_documents ? job.n_bytes : batch.source_starts[document];
}

// Marks the document that holds a byte of the text, for the next replay.
__device__ __forceinline__ void flag_document(const Batch& batch, const Job& job, u32 position) {
    u32 low = 0, high = job.n_documents;  // starts[low] <= position < starts[high]
    while (high - low > 1) {
        const u32 middle = (low + high) / 2;
        if (batch.source_starts[middle] <= position) {
            low = middle;
        } else {
            high = middle;
        }
    }
    const u32 word = static_cast<u32>(job.epoch << EPOCH_SHIFT) | NOT_NORMAL;
    if (batch.document_flags[low] != word) batch.document_flags[low] = word;
    if (!(*const_cast<volatile u64*>(batch.encode_control) & SUM_FLAGGED)) {
        atomicOr(batch.encode_control, SUM_FLAGGED);
    }
}

// Four bytes of the text; what is not text is 0.
__device__ __forceinline__ u32 load_word(const Batch& batch, const Job& job, int at) {
    const int left = static_cast<int>(job.n_bytes) - at;
    if (at < 0 || left <= 0) return 0;
    const u32 word = reinterpret_cast<const u32*>(batch.source_text)[at >> 2];
    return left < 4 ? word & bits_below(left * 8) : word;
}

// Bytes of the window, and the borders between documents. Ends with a barrier.
__device__ __forceinline__ void load_window(Shared& sh, const Batch& batch, const Job& job, int window_start) {
    sh.text[threadIdx.x] = load_word(batch, job, window_start + static_cast<int>(threadIdx.x) * 4);
    sh.classes[threadIdx.x] = 0;
    // A character may reach out of the window.
    if (threadIdx.x == 32) sh.text[WINDOW / 4] = load_word(batch, job, window_start + static_cast<int>(WINDOW));
    if (warp_id() == N_WARPS - 1) {
        const u32 lane = lane_id(), from = window_start > 0 ? window_start : 0;
        sh.border[lane] = 0;
        if (lane == 0) sh.border[WORDS] = 0;
        const u32 first = job.n_documents <= 1 ? (from > 0 ? job.n_documents : 0)
                                               : first_from(batch.source_starts, job.n_documents, from);
        if (lane == 0) sh.first_document = first;
        __syncwarp();
        for (u32 document = first + lane; document < job.n_documents; document += 32) {
            const u32 position = source_start(batch, job, document) - window_start;
            if (position >= WINDOW) break;
            atomicOr(&sh.border[position >> 5], 1u << (position & 31u));
        }
    }
    __syncthreads();
}

constexpr u32 INVALID = 0xffffffffu;

// The code point of the character beyond ASCII whose first byte is at a position; INVALID unless it is well-formed.
__device__ __forceinline__ u32 decode_at(const Shared& sh, u32 position) {
    const u32 index = position >> 2;
    const u32 raw = __funnelshift_r(sh.text[index], sh.text[index + 1], (position & 3u) * 8u);
    const u32 b0 = raw & 0xff, b1 = raw >> 8 & 0xff, b2 = raw >> 16 & 0xff, b3 = raw >> 24;
    const u32 next = position + 1;  // a document that begins inside cuts the character
    const u32 cut = __funnelshift_r(sh.border[next >> 5], sh.border[min(WORDS, (next >> 5) + 1)], next & 31u);
    const bool c1 = (b1 & 0xc0) == 0x80 && !(cut & 1), c2 = (b2 & 0xc0) == 0x80 && !(cut & 2),
               c3 = (b3 & 0xc0) == 0x80 && !(cut & 4);
    if (b0 < 0xe0) return b0 >= 0xc2 && c1 ? (b0 & 0x1f) << 6 | (b1 & 0x3f) : INVALID;
    if (b0 < 0xf0) {
        const u32 code = (b0 & 0x0f) << 12 | (b1 & 0x3f) << 6 | (b2 & 0x3f);
        return c1 && c2 && code >= 0x800 && (code < 0xd800 || code > 0xdfff) ? code : INVALID;
    }
    const u32 code = (b0 & 0x07) << 18 | (b1 & 0x3f) << 12 | (b2 & 0x3f) << 6 | (b3 & 0x3f);
    return b0 < 0xf5 && c1 && c2 && c3 && code >= 0x10000 && code < 0x110000 ? code : INVALID;
}

// Bytes of some characters, shifted to their second, third, fourth ones.
__device__ __forceinline__ u32 shifted(const u32* plane, u32 word, u32 by) {
    return plane[word] << by | (word ? plane[word - 1] >> (32 - by) : 0);
}

// Planes of the window: where segments begin, and what is doubtful. Each warp takes each eighth word. Ends with a barrier.
__device__ __forceinline__ void classify_window(Shared& sh, const Tables& t, const Job& job, int window_start) {
    u8 *classes = reinterpret_cast<u8*>(sh.classes), *lengths = reinterpret_cast<u8*>(sh.lengths);
    const u8* text = reinterpret_cast<const u8*>(sh.text);
    u32 own[WORDS / N_WARPS];
#pragma unroll
    for (u32 k = 0; k < WORDS / N_WARPS; ++k) {
        const u32 word = k * N_WARPS + warp_id(), position = word * 32 + lane_id();
        const u32 code = text[position] < 0xc2 ? INVALID : decode_at(sh, position);
        const u32 n = code == INVALID ? 1 : n_bytes_of(code);
        own[k] = code == INVALID ? 0 : class_of(t, code);
        if (own[k] && position + n <= WINDOW) classes[position + n - 1] = static_cast<u8>(own[k]);
        const int at = window_start + static_cast<int>(position);
        lengths[position] = position >= HALO && position < TILE_END && at < static_cast<int>(job.n_bytes);
        const u32 two = __ballot_sync(FULL, n >= 2), three = __ballot_sync(FULL, n >= 3);
        const u32 four = __ballot_sync(FULL, n >= 4);
        if (lane_id() == 0) {
            sh.at_least[0][word] = two;
            sh.at_least[1][word] = three;
            sh.at_least[2][word] = four;
        }
    }
    __syncthreads();
#pragma unroll
    for (u32 k = 0; k < WORDS / N_WARPS; ++k) {
        const u32 word = k * N_WARPS + warp_id(), position = word * 32 + lane_id();
        const int at = window_start + static_cast<int>(position);
        const u32 border = sh.border[word];
        const bool begins = position == 0 || (border >> lane_id() & 1u);
        const u32 before = begins ? 0 : classes[position - 1];
        const bool out_of_order = own[k] && before > own[k];
        const u32 classed = __ballot_sync(FULL, own[k] != 0);
        const u32 doubtful = __ballot_sync(FULL, own[k] == MAY_CHANGE || out_of_order);
        const u32 live = __ballot_sync(FULL, at >= 0 && at <= static_cast<int>(job.n_bytes));
        if (lane_id() == 0) {
            const u32 inside =
                shifted(sh.at_least[0], word, 1) | shifted(sh.at_least[1], word, 2) | shifted(sh.at_least[2], word, 3);
            sh.inside[word] = inside;
            sh.opens[word] = live & ~inside & (~classed | border);
            sh.doubtful[word] = doubtful;
        }
    }
    __syncthreads();
}

// Brings the doubtful segment [start, end) into normal form, if it is the tile's; in any case its bytes are not copied.
__device__ __forceinline__ void rewrite(Shared& sh, const Tables& t, const Batch& batch, const Job& job,
                                        int window_start, u32 start, u32 end) {
    u8* lengths = reinterpret_cast<u8*>(sh.lengths);
    for (u32 at = max(start, HALO); at < min(end, TILE_END); ++at) lengths[at] = 0;
    if (start < HALO || start >= TILE_END) return;
    const u8* text = reinterpret_cast<const u8*>(sh.text);
    u8* form = sh.forms + MAX_GROWTH * (start - HALO);
    const bool is_character = text[start] < 0x80 || bit_at(sh.inside, start + 1);
    u32 n = is_character ? write_normal_form(t, text + start, text + end, form) : 0;
    if (n == 0) {
        flag_document(batch, job, window_start + start);
        for (n = 0; n < end - start; ++n) form[n] = text[start + n];
    }
    lengths[start] = static_cast<u8>(REWRITTEN | n);
}

// All segments of the window with something doubtful in them. The first doubtful character of each acts. Ends with a barrier.
__device__ __forceinline__ void rewrite_segments(Shared& sh, const Tables& t, const Batch& batch, const Job& job,
                                                 int window_start) {
    for (u32 position = threadIdx.x; position < WINDOW; position += THREADS) {
        if (!bit_at(sh.doubtful, position)) continue;
        const u32 from = position > MAX_SEGMENT ? position - MAX_SEGMENT : 0;
        const u32 start = last_bit(sh.opens, from, position);
        const u32 end = start == FULL ? 0 : first_bit(sh.opens, position + 1, min(WINDOW, start + MAX_SEGMENT + 1));
        if (start == FULL || end - start > MAX_SEGMENT) {
            const bool own = position >= HALO && position < TILE_END;
            if (own) flag_document(batch, job, window_start + position);
        } else if (first_bit(sh.doubtful, start, position) == position) {
            rewrite(sh, t, batch, job, window_start, start, end);
        }
    }
    __syncthreads();
}

// The bytes of the window that the thread adds up, and what goes to where each goes.
__device__ __forceinline__ void load_lengths(Spans& spans, const Shared& sh) {
    const u32 lengths = sh.lengths[threadIdx.x];
#pragma unroll
    for (u32 k = 0; k < IDS_PER_THREAD; ++k) spans.length[k] = lengths >> (8 * k) & (REWRITTEN - 1);
}

// Puts them into the stage, in which the tile's begin at `shift`.
__device__ __forceinline__ void fill_stage(Shared& sh, const Spans& spans, u32 shift) {
    u8* stage = reinterpret_cast<u8*>(sh.stage);
    const u32 lengths = sh.lengths[threadIdx.x], text = sh.text[threadIdx.x];
#pragma unroll
    for (u32 k = 0; k < IDS_PER_THREAD; ++k) {
        const u32 to = shift + spans.at[k];
        if (lengths >> (8 * k) & REWRITTEN) {
            const u8* form = sh.forms + MAX_GROWTH * (threadIdx.x * IDS_PER_THREAD + k - HALO);
            for (u32 n = 0; n < spans.length[k]; ++n) stage[to + n] = form[n];
        } else if (spans.length[k]) {
            stage[to] = static_cast<u8>(text >> (8 * k));
        }
    }
}

// Of each document that begins in this tile, where it begins in the result; those at the end of the text belong to the last tile.
__device__ __forceinline__ void write_documents(const Shared& sh, const Batch& batch, const Job& job, u32 total) {
    const u32 tile_start = blockIdx.x * TILE;
    const bool is_last = tile_start + TILE >= job.n_bytes;
    for (u32 document = sh.first_document + threadIdx.x; document <= job.n_documents; document += THREADS) {
        const u32 start = source_start(batch, job, document);
        if (start >= job.n_bytes ? !is_last : start >= tile_start + TILE) break;
        if (start >= job.n_bytes) {
            batch.document_starts[document] = sh.base + total;
        } else if (start >= tile_start) {
            batch.document_starts[document] = sh.base + sh.tile.offset[start - tile_start + HALO];
        }
    }
}

// The last block to finish writes the header of the next replay. If the text does not fit, there is none, and all documents are flagged.
__device__ __forceinline__ void complete(Shared& sh, const Batch& batch, const Job& job, u32 total) {
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        const u64 own = static_cast<u64>(total) << SUM_BYTES_SHIFT | 1;
        const u64 sums = atomicAdd(&batch.control->sums, own) + own;
        __threadfence();
        sh.is_last = (sums & bits_below(SUM_BYTES_SHIFT)) == max(1u, (job.n_bytes + TILE - 1) / TILE);
        sh.n_result_bytes = static_cast<u32>(sums >> SUM_BYTES_SHIFT);
    }
    __syncthreads();
    if (!sh.is_last) return;
    const bool fits = sh.n_result_bytes <= job.capacity;
    if (!fits) {
        const u32 word = static_cast<u32>(job.epoch << EPOCH_SHIFT) | NOT_NORMAL;
        for (u32 document = threadIdx.x; document <= job.n_documents; document += THREADS) {
            batch.document_starts[document] = 0;
            if (document < job.n_documents) batch.document_flags[document] = word;
        }
    }
    if (threadIdx.x) return;
    batch.control->sums = 0;
    if (!fits) atomicOr(batch.encode_control, SUM_FLAGGED);
    *batch.header = {job.epoch, fits ? sh.n_result_bytes : 0, job.n_documents, job.flags | FLAG_NORMAL_FORM, 0};
}

extern "C" __global__ void __launch_bounds__(THREADS, 8) normalize(const Tables t, const Batch batch, const Job job) {
    __shared__ Shared sh;
    const int window_start = static_cast<int>(blockIdx.x * TILE) - static_cast<int>(HALO);
    load_window(sh, batch, job, window_start);
    classify_window(sh, t, job, window_start);
    rewrite_segments(sh, t, batch, job, window_start);
    Spans spans;
    load_lengths(spans, sh);
    const u32 total = add_up(sh.tile, spans);
    if (warp_id() == 0) {
        const u32 base = look_back(Counts{batch.states, job.epoch}, blockIdx.x, total);
        if (lane_id() == 0) sh.base = base;
    }
    __syncthreads();
    const u32 base = sh.base, shift = base % LINE;
    fill_stage(sh, spans, shift);
    __syncthreads();
    write_stage(sh.stage, batch.text, base - shift, base, min(base + total, job.capacity));
    write_documents(sh, batch, job, total);
    complete(sh, batch, job, total);
}
