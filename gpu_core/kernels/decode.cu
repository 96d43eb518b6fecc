// Ids back to bytes, in one kernel: a block turns one tile of ids into the bytes of their entries, side by side.
//
//   ids         3  7  9 │ 7              a tile of 1,024 ids; each thread has four that follow each other
//   lengths     2  5  0   5              entry 9 is a special token that is to be left out, or no entry at all
//   offsets     0  2  7   7  (12)        sum in the block, then look-back over the tiles before
//   bytes       he llo_       llo_       put together in shared memory, written in whole 16-byte items
//
// Cost: one 16-byte load for each id, which holds entries of up to 12 bytes; each byte of a longer entry is loaded once. Sums
// and writes are those of all tiles of ids (id_tiles.cuh, look_back.cuh).
#include "id_tiles.cuh"
#include "search.cuh"

constexpr u32 STAGE = 8192;  // bytes put together at a time; a tile of ordinary text has about half of that
constexpr u32 INLINE = 12;   // bytes of an entry that lie in its slot
constexpr u32 SPECIAL = 1u << 31, LENGTH_BITS = (1u << 30) - 1;
constexpr u32 FLAG_SKIP_SPECIAL = 1;

struct Tables {
    // Of each id: the entry's bytes, or in x where they lie in the pool; w: length, bit 31 = special token.
    const uint4* pieces;
    const u8* pool;
    u32 n_ids;
    u32 reserved;
};

struct Control {
    u32 blocks_done;
    u32 reserved;
};

struct Completion {
    u64 epoch;
    u32 n_bytes;
    u32 reserved;
};

struct Batch {
    const u32* ids;              // room for a whole last tile
    const u32* sequence_starts;  // number of each sequence's first id
    u8* bytes;
    u32* sequence_bytes;  // where the bytes of each sequence begin, and the end of the last
    u64* tile_states;
    Control* control;
    Completion* completion;
};

struct Job {
    u64 epoch;
    u32 n_ids, n_sequences;
    u32 flags;
    u32 capacity;  // room for bytes; what lies behind is counted, not written
};

struct Shared {
    uint4 stage[STAGE / 16];
    Tile tile;
    u32 base, first_sequence;
};

// What a thread knows of its ids; `at` counts in the bytes of the batch, once these are known.
struct Pieces : Spans {
    uint4 slot[IDS_PER_THREAD];
};

__device__ __forceinline__ void load_pieces(Pieces& p, const Tables& t, const Batch& batch, const Job& job) {
    const u32 first = blockIdx.x * TILE_IDS + threadIdx.x * IDS_PER_THREAD;
    const uint4 ids = reinterpret_cast<const uint4*>(batch.ids)[first / IDS_PER_THREAD];
    const u32 id[IDS_PER_THREAD] = {ids.x, ids.y, ids.z, ids.w};
#pragma unroll
    for (u32 k = 0; k < IDS_PER_THREAD; ++k) {
        bool known = first + k < job.n_ids && id[k] < t.n_ids;
        p.slot[k] = known ? __ldg(&t.pieces[id[k]]) : make_uint4(0, 0, 0, 0);
        bool skipped = (job.flags & FLAG_SKIP_SPECIAL) && (p.slot[k].w & SPECIAL);
        p.length[k] = skipped ? 0 : p.slot[k].w & LENGTH_BITS;
    }
}

// Puts the thread's entries into the stage, as far as they lie in the STAGE bytes from `first`; long ones by the whole warp.
__device__ __forceinline__ void fill_stage(Shared& sh, const Tables& t, const Pieces& p, u32 first) {
    u8* stage = reinterpret_cast<u8*>(sh.stage);
#pragma unroll
    for (u32 k = 0; k < IDS_PER_THREAD; ++k) {
        const uint4 slot = p.slot[k];
        bool is_long = p.length[k] > INLINE;
        for (u32 i = 0; !is_long && i < p.length[k]; ++i) {
            u32 word = i < 4 ? slot.x : i < 8 ? slot.y : slot.z, to = p.at[k] + i - first;
            if (to < STAGE) stage[to] = static_cast<u8>(word >> (i & 3u) * 8);
        }
        bool here = is_long && p.at[k] < first + STAGE && p.at[k] + p.length[k] > first;
        for (u32 lanes = __ballot_sync(FULL, here); lanes; lanes &= lanes - 1) {
            u32 lane = __ffs(lanes) - 1;
            u32 at = __shfl_sync(FULL, p.at[k], lane), from = __shfl_sync(FULL, slot.x, lane);
            u32 end = min(at + __shfl_sync(FULL, p.length[k], lane), first + STAGE);
            for (u32 to = max(at, first) + lane_id(); to < end; to += 32) stage[to - first] = t.pool[from + (to - at)];
        }
    }
}

// The first byte of each sequence that begins in this tile; those at the end of the ids belong to the last tile.
__device__ __forceinline__ void write_sequences(const Shared& sh, const Batch& batch, const Job& job, u32 total) {
    const u32 tile_start = blockIdx.x * TILE_IDS;
    for (u32 sequence = sh.first_sequence + threadIdx.x; sequence <= job.n_sequences; sequence += THREADS) {
        u32 start = sequence == 0 ? 0 : sequence == job.n_sequences ? job.n_ids : batch.sequence_starts[sequence];
        if (start >= job.n_ids) {
            if (tile_start + TILE_IDS < job.n_ids) break;
            batch.sequence_bytes[sequence] = sh.base + total;
        } else if (start >= tile_start + TILE_IDS) {
            break;
        } else {
            batch.sequence_bytes[sequence] = sh.base + sh.tile.offset[start - tile_start];
        }
    }
}

// The last block to finish tells the host; fences are cumulative, see emit.cuh.
__device__ __forceinline__ void complete(const Batch& batch, const Job& job) {
    __syncthreads();
    if (threadIdx.x) return;
    const u32 n_tiles = max(1u, (job.n_ids + TILE_IDS - 1) / TILE_IDS);
    __threadfence();
    if (atomicInc(&batch.control->blocks_done, n_tiles - 1) != n_tiles - 1) return;
    __threadfence();
    volatile Completion* completion = batch.completion;
    completion->n_bytes = static_cast<u32>(*const_cast<volatile u64*>(&batch.tile_states[n_tiles - 1]));
    __threadfence_system();
    completion->epoch = job.epoch;
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) decode(const Tables t, const Batch batch, const Job job) {
    __shared__ Shared sh;
    Pieces p;
    load_pieces(p, t, batch, job);
    const u32 total = add_up(sh.tile, p);
    if (warp_id() == 0) {
        u32 base = look_back(Counts{batch.tile_states, job.epoch}, blockIdx.x, total);
        if (lane_id() == 0) sh.base = base;
    } else if (warp_id() == 1) {
        // A border at the tile's first id is found too. One sequence begins with the first tile, its end lies in the last one.
        u32 tile_start = blockIdx.x * TILE_IDS;
        u32 first = job.n_sequences <= 1 ? (tile_start ? job.n_sequences : 0)
                                         : first_from(batch.sequence_starts, job.n_sequences, tile_start);
        if (lane_id() == 0) sh.first_sequence = first;
    }
    __syncthreads();
    const u32 base = sh.base, end = min(base + total, job.capacity);
#pragma unroll
    for (u32 k = 0; k < IDS_PER_THREAD; ++k) p.at[k] += base;
    for (u32 first = base & ~127u; first < end; first += STAGE) {
        fill_stage(sh, t, p, first);
        __syncthreads();
        write_stage(sh.stage, batch.bytes, first, base, end);
        __syncthreads();
    }
    write_sequences(sh, batch, job, total);
    complete(batch, job);
}
