// Pieces of documents that overlap, back to documents: of each piece, the tokens from the seam before it to the one behind it. What a
// seam is and why that is exact: gpu_core/long_runs.py.
//
//   pieces       x aaaaaaaa|       2 tokens of 4 bytes each, and `x`
//                      aaaa|aaaa   a common token at the same place: the seam lies behind it
//   kept         x|aaaa|aaaa|
//                           |aaaa
//
// A block has a warp for each of 8 pieces. The warp finds the seam before its piece, and the first one also that behind the last piece.
// Then the block counts what its pieces keep, looks back over the blocks before it (look_back.cuh), and writes ids side by side.
#include "completion.cuh"
#include "look_back.cuh"

constexpr u32 THREADS = 256, PIECES = THREADS / 32;
constexpr u32 SEARCHED = 128;  // bytes from the beginning of a piece in which a common token may begin
constexpr u32 FLAG_IDS = 1, FLAG_TOKEN_STARTS = 2;
constexpr u32 EPOCH_SHIFT = 4;  // of a word of document_flags
// What a piece is reported with: it needs the CPU, or has no token in common with the one before; then also how many bytes before the
// piece a token begins.
constexpr u32 REFUSED = 1, NO_SEAM = 2, SHIFT_AT = 2;
constexpr u32 SUM_TOKENS_SHIFT = 20, SUM_REPORTS_SHIFT = 47;
constexpr u64 SUM_BLOCKS = (1u << SUM_TOKENS_SHIFT) - 1,
              SUM_TOKENS = (1u << (SUM_REPORTS_SHIFT - SUM_TOKENS_SHIFT)) - 1;

struct Control {
    u64 sums;  // over the blocks of a launch: how many are done, their tokens, those with a report; the last one clears it
};

struct Batch {
    // What `encode` left behind, of pieces in the place of documents.
    const u32* ids;
    const u32* token_starts;
    const u32* document_tokens;
    const u32* document_starts;
    const u32* document_flags;
    const u32*
        places;  // where each piece begins in the text of all documents; one that begins at the end of another shares nothing
    u32* joined_ids;
    u32* joined_starts;  // in the text of all documents
    u32* piece_tokens;   // number of the first token that each piece keeps, and of all
    u32* reports;        // 0 for a piece that is joined to the one before
    u64* states;
    Control* control;
    Completion* completion;
};

struct Job {
    u64 epoch;
    u32 n_bytes, n_pieces;
    u32 flags;
    u32 reserved;
};

// The first tokens behind a seam: number in the piece before it, and in the one behind it.
struct Seam {
    u32 before, behind;
};

struct Shared {
    Seam seam[PIECES + 1];
    u32 report[PIECES];
    u32 first[PIECES + 1];  // of the tokens that the block keeps, the number of the first one of each piece, and of all
    u32 ahead
        [PIECES];  // how far a token's place in the text of all pieces is ahead of that in the text of all documents
    u32 base;
};

// First token from `low` to before `high` that begins at or behind a position, or `high`.
__device__ __forceinline__ u32 first_token(const u32* starts, u32 low, u32 high, u32 position) {
    while (low < high) {
        u32 middle = (low + high) / 2;
        if (starts[middle] < position) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// The seam before a piece, behind the first token that both have at the same place. Between documents, before the first piece and behind
// the last one it is where one ends and the other begins. By one warp; `report` is the same in all lanes.
__device__ __forceinline__ Seam find_seam(const Batch& batch, const Job& job, u32 piece, u32& report) {
    report = 0;
    piece = min(piece, job.n_pieces);
    const u32 own = batch.document_tokens[piece];
    if (piece == 0 || piece == job.n_pieces) return {own, own};
    const u32 start = batch.document_starts[piece], before = batch.document_tokens[piece - 1];
    const u32 shared = batch.places[piece - 1] + (start - batch.document_starts[piece - 1]) - batch.places[piece];
    if (shared == 0) return {own, own};
    const u32 end = batch.document_tokens[piece + 1], n_tokens = batch.document_tokens[job.n_pieces];
    for (u32 first = own; first < end; first += 32) {
        const u32 token = first + lane_id();
        const u32 at = token < end ? batch.token_starts[token] : job.n_bytes;
        const bool near = token < end && at - start < SEARCHED;
        bool common = false;
        u32 other = own;
        if (near) {
            other = first_token(batch.token_starts, before, own, at - shared);
            if (other < own && batch.token_starts[other] == at - shared && batch.ids[other] == batch.ids[token]) {
                u32 token_end = token + 1 < n_tokens ? batch.token_starts[token + 1] : job.n_bytes;
                common = batch.token_starts[other + 1] == token_end - shared;
            }
        }
        const u32 hits = __ballot_sync(FULL, common);
        if (hits) {
            const u32 lane = __ffs(hits) - 1;
            return {__shfl_sync(FULL, other, lane) + 1, first + lane + 1};
        }
        if (!__any_sync(FULL, near)) break;
    }
    // The token of the piece before that this piece cuts begins so many bytes before it.
    const u32 next = first_token(batch.token_starts, before, own, start - shared);
    const u32 shift = next > before ? start - shared - batch.token_starts[next - 1] : 0;
    report = NO_SEAM | shift << SHIFT_AT;
    return {own, own};
}

// What piece number `k` of the block keeps. After a fault the seams of a piece may lie in the wrong order.
__device__ __forceinline__ u32 n_kept(const Shared& sh, u32 k) {
    const u32 from = sh.seam[k].behind, to = sh.seam[k + 1].before;
    return to > from ? to - from : 0;
}

// All threads of a block write all it keeps, because one piece may be most of a document: whole 128-byte lines, but for the first and
// the last one.
__device__ __forceinline__ void write_tokens(const Shared& sh, const Batch& batch, const Job& job) {
    const u32 base = sh.base, end = base + sh.first[PIECES];
#pragma unroll 4
    for (u32 at = (base & ~31u) + threadIdx.x; at < end; at += THREADS) {
        if (at < base) continue;
        u32 k = 0;
        for (u32 other = 1; other < PIECES; ++other) k += sh.first[other] <= at - base;
        const u32 token = sh.seam[k].behind + (at - base - sh.first[k]);
        if (job.flags & FLAG_IDS) batch.joined_ids[at] = batch.ids[token];
        if (job.flags & FLAG_TOKEN_STARTS) batch.joined_starts[at] = batch.token_starts[token] - sh.ahead[k];
    }
}

// The last block to finish tells the host. It knows all it tells from the one word that shows it to be the last.
__device__ __forceinline__ void complete(const Batch& batch, const Job& job, u32 n_tokens, bool any_report) {
    __syncthreads();
    if (threadIdx.x) return;
    __threadfence();
    const u32 n_blocks = max(1u, (job.n_pieces + PIECES - 1) / PIECES);
    const u64 own =
        static_cast<u64>(any_report) << SUM_REPORTS_SHIFT | static_cast<u64>(n_tokens) << SUM_TOKENS_SHIFT | 1;
    const u64 sums = atomicAdd(&batch.control->sums, own) + own;
    if ((sums & SUM_BLOCKS) != n_blocks) return;
    batch.control->sums = 0;
    tell(batch.completion, job.epoch, static_cast<u32>(sums >> SUM_TOKENS_SHIFT & SUM_TOKENS),
         sums >> SUM_REPORTS_SHIFT != 0);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) join(const Batch batch, const Job job) {
    __shared__ Shared sh;
    const u32 k = warp_id(), piece = blockIdx.x * PIECES + k;
    u32 report;
    const Seam seam = find_seam(batch, job, piece, report);
    if (piece < job.n_pieces) {
        const u32 word = batch.document_flags[piece];
        const bool current = word >> EPOCH_SHIFT == (job.epoch & (FULL >> EPOCH_SHIFT));
        if (current && (word & bits_below(EPOCH_SHIFT))) report = REFUSED;
    }
    if (lane_id() == 0) {
        sh.seam[k] = seam;
        sh.report[k] = report;
        if (piece < job.n_pieces) {
            batch.reports[piece] = report;
            sh.ahead[k] = batch.document_starts[piece] - batch.places[piece];
        }
    }
    if (k == 0) {
        u32 of_next;
        const Seam last = find_seam(batch, job, blockIdx.x * PIECES + PIECES, of_next);
        if (lane_id() == 0) sh.seam[PIECES] = last;
    }
    __syncthreads();
    u32 reports = 0;
    if (k == 0) {
        u32 total = 0;
        for (u32 other = 0; other < PIECES; ++other) {
            if (lane_id() == 0) sh.first[other] = total;
            total += n_kept(sh, other);
        }
        u32 base = look_back(Counts{batch.states, job.epoch}, blockIdx.x, total);
        if (lane_id() == 0) {
            sh.base = base;
            sh.first[PIECES] = total;
        }
    }
    for (u32 other = 0; other < PIECES; ++other) reports |= sh.report[other];
    __syncthreads();
    write_tokens(sh, batch, job);
    if (lane_id() == 0 && piece < job.n_pieces) {
        batch.piece_tokens[piece] = sh.base + sh.first[k];
        if (piece + 1 == job.n_pieces) batch.piece_tokens[piece + 1] = sh.base + sh.first[k + 1];
    }
    complete(batch, job, sh.first[PIECES], reports != 0);
}
