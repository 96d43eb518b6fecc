// Ids as decimal numbers, for answers in JSON. Launched right behind `encode`, whose ids are on the device; writes text and ids to pinned
// memory.
//
//   ids         9707  11 │ 5          a tile of 1,024 ids; each thread has four that follow each other
//   lengths     5     3    2          digits and a comma
//   text        9707,11,5,            put together in shared memory, written in whole 16-byte items
//   documents   0        8   10       where the text of each begins: a reader leaves out the comma before the next one
//
// Sums in the block, then look-back over the tiles before (id_tiles.cuh, look_back.cuh). Text behind the room that there is does not get written, but is counted.
#include "completion.cuh"
#include "id_tiles.cuh"
#include "search.cuh"

constexpr u32 MAX_TEXT = 11;  // bytes of an id at most
constexpr u32 LINE = 128;     // bytes; the text of a tile begins at the same place of a line in both memories
constexpr u32 STAGE = TILE_IDS * MAX_TEXT + LINE;

struct Control {
    u32 blocks_done;
    u32 reserved;
};

struct Batch {
    // What `encode` left on the device.
    const u32* ids;
    const u32* document_tokens;
    const Completion* encoded;
    // Pinned memory.
    u32* written_ids;
    u32* written_tokens;  // a copy of document_tokens
    u8* decimals;
    u32* document_decimals;  // where the text of each document begins, and the end of the last
    Completion* completion;
    u64* states;
    Control* control;
};

struct Job {
    u64 epoch;
    u32 n_documents;
    u32 room;  // for text, in bytes
};

struct Shared {
    uint4 stage[STAGE / 16];
    Tile tile;
    u32 base, first_document;
};

// What a thread knows of its ids; those behind the last one have no text.
struct Numbers : Spans {
    u32 id[IDS_PER_THREAD];
};

__device__ __forceinline__ u32 n_digits(u32 value) {
    u32 n = 1;
#pragma unroll
    for (u32 bound = 10; bound < 1000000000u; bound *= 10) n += value >= bound;
    return n + (value >= 1000000000u);
}

// Loads the thread's ids and writes them where the host reads them.
__device__ __forceinline__ void load_numbers(Numbers& p, const Batch& batch, u32 n_ids) {
    const u32 first = blockIdx.x * TILE_IDS + threadIdx.x * IDS_PER_THREAD;
    if (first + IDS_PER_THREAD <= n_ids) {
        const uint4 ids = reinterpret_cast<const uint4*>(batch.ids)[first / IDS_PER_THREAD];
        reinterpret_cast<uint4*>(batch.written_ids)[first / IDS_PER_THREAD] = ids;
        p.id[0] = ids.x, p.id[1] = ids.y, p.id[2] = ids.z, p.id[3] = ids.w;
    } else {
        for (u32 k = 0; k < IDS_PER_THREAD; ++k) {
            p.id[k] = first + k < n_ids ? batch.ids[first + k] : 0;
            if (first + k < n_ids) batch.written_ids[first + k] = p.id[k];
        }
    }
#pragma unroll
    for (u32 k = 0; k < IDS_PER_THREAD; ++k) p.length[k] = first + k < n_ids ? n_digits(p.id[k]) + 1 : 0;
}

// Puts the text of the thread's ids into the stage, in which the tile's begins at `shift`; last digits first.
__device__ __forceinline__ void fill_stage(Shared& sh, const Numbers& p, u32 shift) {
    u8* stage = reinterpret_cast<u8*>(sh.stage);
#pragma unroll
    for (u32 k = 0; k < IDS_PER_THREAD; ++k) {
        if (p.length[k] == 0) break;
        u32 to = shift + p.at[k] + p.length[k] - 1, rest = p.id[k];
        stage[to] = ',';
        do {
            stage[--to] = static_cast<u8>('0' + rest % 10);
            rest /= 10;
        } while (rest);
    }
}

// Of each document that begins in this tile, where its ids and their text begin; those at the end of the ids belong to the last tile.
__device__ __forceinline__ void write_documents(const Shared& sh, const Batch& batch, const Job& job, u32 n_ids,
                                                u32 total) {
    const u32 tile_start = blockIdx.x * TILE_IDS;
    const bool is_last = tile_start + TILE_IDS >= n_ids;
    for (u32 document = sh.first_document + threadIdx.x; document <= job.n_documents; document += THREADS) {
        const u32 token = batch.document_tokens[document];
        if (token >= n_ids ? !is_last : token >= tile_start + TILE_IDS) break;
        batch.written_tokens[document] = token;
        batch.document_decimals[document] = sh.base + (token >= n_ids ? total : sh.tile.offset[token - tile_start]);
    }
}

// The last block to finish tells the host; fences are cumulative, see emit.cuh.
__device__ __forceinline__ void complete(const Batch& batch, const Job& job, u32 n_blocks) {
    __syncthreads();
    if (threadIdx.x) return;
    __threadfence();
    if (atomicInc(&batch.control->blocks_done, n_blocks - 1) != n_blocks - 1) return;
    __threadfence();
    tell(batch.completion, job.epoch, batch.encoded->n_tokens, batch.encoded->any_flagged != 0);
}

extern "C" __global__ void __launch_bounds__(THREADS, 4) decimal(const Batch batch, const Job job) {
    __shared__ Shared sh;
    const u32 n_ids = batch.encoded->n_tokens, n_blocks = max(1u, (n_ids + TILE_IDS - 1) / TILE_IDS);
    if (blockIdx.x >= n_blocks) return;
    Numbers p;
    load_numbers(p, batch, n_ids);
    const u32 total = add_up(sh.tile, p);
    if (warp_id() == 0) {
        const u32 base = look_back(Counts{batch.states, job.epoch}, blockIdx.x, total);
        if (lane_id() == 0) sh.base = base;
    } else if (warp_id() == 1) {
        const u32 first = first_from(batch.document_tokens, job.n_documents, blockIdx.x * TILE_IDS);
        if (lane_id() == 0) sh.first_document = first;
    }
    __syncthreads();
    const u32 base = sh.base, shift = base % LINE;
    fill_stage(sh, p, shift);
    __syncthreads();
    write_stage(sh.stage, batch.decimals, base - shift, base, min(base + total, job.room));
    write_documents(sh, batch, job, n_ids, total);
    complete(batch, job, n_blocks);
}
