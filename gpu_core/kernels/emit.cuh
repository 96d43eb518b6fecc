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

// Of four documents why they need the CPU, a byte each; a word of another replay says nothing.
__device__ __forceinline__ u32 reasons_of(uint4 words, u32 epoch) {
    const u32 mask = bits_below(EPOCH_SHIFT);
    return (words.x >> EPOCH_SHIFT == epoch ? words.x & mask : 0) |
           (words.y >> EPOCH_SHIFT == epoch ? words.y & mask : 0) << 8 |
           (words.z >> EPOCH_SHIFT == epoch ? words.z & mask : 0) << 16 |
           (words.w >> EPOCH_SHIFT == epoch ? words.w & mask : 0) << 24;
}

// Why documents need the CPU, to where the host reads it: by all threads of the last block, rare. Both sides have room for whole items.
__device__ __noinline__ void write_reasons(u8* reasons, const u32* flags, u32 n_documents, u64 epoch) {
    constexpr u32 LOADS = 4;  // of each thread, all before its first store
    const uint4* words = reinterpret_cast<const uint4*>(flags);
    const u32 n_items = (n_documents + 3) / 4, current = static_cast<u32>(epoch) & (FULL >> EPOCH_SHIFT);
    for (u32 first = threadIdx.x; first < n_items; first += LOADS * THREADS) {
        uint4 held[LOADS];
        for (u32 k = 0; k < LOADS; ++k) {
            if (first + k * THREADS < n_items) held[k] = words[first + k * THREADS];
        }
        for (u32 k = 0; k < LOADS; ++k) {
            const u32 item = first + k * THREADS;
            if (item < n_items) reinterpret_cast<u32*>(reasons)[item] = reasons_of(held[k], current);
        }
    }
}

// The last block to finish tells the host. It knows all it tells from the one word that shows it to be the last, but for the reasons of a
// replay that flags documents.
__device__ __forceinline__ void complete(Shared& sh, const Batch& batch, const Job& job, u32 n_tokens, u32 n_tiles) {
    __syncthreads();
    if (threadIdx.x == 0) {
        // Fences are cumulative: this one covers what the block wrote, and the last block's cover what all of them did.
        __threadfence();
        const u64 own = static_cast<u64>(n_tokens) << SUM_TOKENS_SHIFT | 1;
        const u64 sums = atomicAdd(&batch.control->sums, own) + own;
        const bool is_last = (sums & ((1u << SUM_TOKENS_SHIFT) - 1)) == n_tiles;
        const bool any_flagged = (sums & SUM_FLAGGED) != 0;
        const u32 n_all = static_cast<u32>(sums >> SUM_TOKENS_SHIFT & SUM_TOKENS);
        if (is_last) batch.control->sums = 0;
        if (is_last && !any_flagged) tell(batch.completion, job.epoch, n_all, false);
        sh.tells_reasons = is_last && any_flagged;
        sh.n_tokens = n_all;
        if (sh.tells_reasons) __threadfence();
    }
    __syncthreads();
    if (!sh.tells_reasons) return;
    write_reasons(batch.reasons, batch.document_flags, job.n_documents, job.epoch);
    __syncthreads();
    if (threadIdx.x == 0) {
        __threadfence();
        tell(batch.completion, job.epoch, sh.n_tokens, true);
    }
}
