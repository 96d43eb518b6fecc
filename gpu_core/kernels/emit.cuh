// Stage 6: where each tile's tokens go. A tile publishes how many it has, looks back over the tiles before it (look_back.cuh), and writes
// its ids once, side by side.
#pragma once

#include "lookup.cuh"
#include "tile_state.cuh"

// Tokens of the tile before each word of the window. By one warp.
__device__ __forceinline__ void rank_tokens(Shared& sh) {
    static_assert(ARENA_WORDS <= 64, "two words for each lane");
    u32 lane = lane_id(), high = lane + 32;
    u32 low_count = __popc(sh.token[lane]), high_count = high < ARENA_WORDS ? __popc(sh.token[high]) : 0;
    u32 low_sum = warp_inclusive_sum(low_count), high_sum = warp_inclusive_sum(high_count);
    u32 low_total = __shfl_sync(FULL, low_sum, 31);
    sh.token_rank[lane] = low_sum - low_count;
    if (high < ARENA_WORDS) sh.token_rank[high] = low_total + high_sum - high_count;
    if (lane == 31) sh.n_tokens = low_total + high_sum;
}

__device__ __forceinline__ u32 rank_of(const Shared& sh, u32 position) {
    return sh.token_rank[position >> 5] + __popc(sh.token[position >> 5] & bits_below(position & 31u));
}

// Closes up the positions of the tokens; `order` is free by now.
__device__ __forceinline__ void collect_tokens(Shared& sh) {
    for (u32 position = HALO_LEFT + threadIdx.x; position < ARENA; position += THREADS) {
        if (bit_at(sh.token, position)) sh.order[rank_of(sh, position)] = position;
    }
}

// Writes ids in whole 128-byte lines, but for the first and the last one.
__device__ __forceinline__ void write_tokens(const Shared& sh, const Batch& batch, const Job& job) {
    const u32 base = sh.base, end = base + sh.n_tokens;
    const u32 window_start = job.tile_start - HALO_LEFT;
    for (u32 at = (base & ~31u) + threadIdx.x; at < end; at += THREADS) {
        if (at < base) continue;
        u32 position = sh.order[at - base];
        if (job.flags & FLAG_IDS) batch.ids[at] = sh.symbol[position];
        if (job.flags & FLAG_TOKEN_STARTS) batch.token_starts[at] = window_start + position;
    }
}

// The number of the first token of each document that starts in this tile; those at the end of the text belong to the last tile.
__device__ __forceinline__ void write_documents(const Shared& sh, const Batch& batch, const Job& job, bool last_tile) {
    const u32 tile_start = job.tile_start;
    for (u32 document = sh.first_document + threadIdx.x; document <= job.n_documents; document += THREADS) {
        u32 start = document == 0 ? 0 : document == job.n_documents ? job.n_bytes : batch.document_starts[document];
        if (start >= job.n_bytes) {
            if (!last_tile) break;
            batch.document_tokens[document] = sh.base + sh.n_tokens;
        } else if (start >= tile_start + TILE) {
            break;
        } else if (start >= tile_start) {
            batch.document_tokens[document] = sh.base + rank_of(sh, start - tile_start + HALO_LEFT);
        }
    }
}

// The last block to finish tells the host. It knows all it tells from the one word that shows it to be the last.
__device__ __forceinline__ void complete(const Batch& batch, const Job& job, u32 n_tokens, u32 n_tiles) {
    __syncthreads();
    if (threadIdx.x) return;
    // Fences are cumulative: this one covers what the block wrote, and the last block's cover what all of them did.
    __threadfence();
    const u64 own = static_cast<u64>(n_tokens) << SUM_TOKENS_SHIFT | 1;
    const u64 sums = atomicAdd(&batch.control->sums, own) + own;
    if ((sums & ((1u << SUM_TOKENS_SHIFT) - 1)) != n_tiles) return;
    batch.control->sums = 0;
    volatile Completion* completion = batch.completion;
    completion->n_tokens = static_cast<u32>(sums >> SUM_TOKENS_SHIFT & SUM_TOKENS);
    completion->any_flagged = (sums & SUM_FLAGGED) != 0;
    __threadfence_system();
    completion->epoch = job.epoch;
}
