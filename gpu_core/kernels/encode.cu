// The whole pipeline in one kernel: a block turns one tile of text into ids.
//
//   text ─► bit planes ─► added tokens ─► starts ─► lookup ─► merges ─► ranks ─► look-back ─► ids
//           window.cuh    literals.cuh    split.cuh  lookup.cuh merge.cuh  emit.cuh
//
//            halo │            tile             │  halo
//   bytes    . . .│t h e _ q u i c k _ . . . b r│o w n _ . .     a pre-token belongs to the tile in which it starts
//   position 0   64                            960          1024
//
// No block waits for one that has a higher number, nothing is cleared between replays, and blocks beyond the live text exit at once.
#include "bridge.cuh"
#include "emit.cuh"

// Stages 1 to 3, window after window until the tile's own one tells all. BPE over characters has its own (bridge.cuh).
__device__ __forceinline__ void split_tile(Shared& sh, const Tables& t, const Batch& batch, const Job& job,
                                           bool early) {
    if (threadIdx.x == 0) start_walk(sh.walk, job.tile_start);
    __syncthreads();
    for (; sh.walk.mode != DONE; early = false) {
        int window_start = sh.walk.window_start;
        load_window(sh, batch, job, window_start, early);
        if constexpr (FAMILY == BRIDGE) {
            split_components(sh, t, batch, job, window_start);
        } else {
            classify_window(sh, t, batch, job, window_start);
            match_literals(sh, t, batch, job, window_start);
            if (warp_id() == 0) look(sh, t, batch, job);
        }
        __syncthreads();
    }
}

// Lists the tile's pre-tokens by position, and behind them the end of the last one. Their first bytes are the first tokens.
__device__ __forceinline__ void list_pretokens(Shared& sh, const Batch& batch, const Job& job) {
    if (warp_id() == 0) {
        u32 lane = lane_id();
        u32 own = lane >= HALO_LEFT / 32 && lane < TILE_END / 32 ? sh.start[lane] : 0;
        u32 sum = warp_inclusive_sum(__popc(own)), total = __shfl_sync(FULL, sum, 31);
        sh.start_rank[lane] = sum - __popc(own);
        sh.token[lane] = own;
        if (lane + 32 < ARENA_WORDS) sh.token[lane + 32] = 0;
        sh.selected[lane] = 0;
        if (lane + 32 < ARENA_WORDS) sh.selected[lane + 32] = 0;
        if (lane < 5) sh.n_miss[lane] = 0;
        if (lane == 0) {
            sh.n_pretokens = total;
            sh.next_work = 0;
        }
    }
    __syncthreads();
    for (u32 position = HALO_LEFT + threadIdx.x; position < TILE_END; position += THREADS) {
        if (!bit_at(sh.start, position)) continue;
        u32 rank = sh.start_rank[position >> 5] + __popc(sh.start[position >> 5] & bits_below(position & 31u));
        sh.pretoken[rank] = static_cast<u16>(position);
    }
    __syncthreads();
    u32 n = sh.n_pretokens;
    if (threadIdx.x == 0 && n) {
        u32 last = sh.pretoken[n - 1];
        u32 limit = last + MAX_PRETOKEN + 1;  // any end behind the limit will do
        sh.pretoken[n] = static_cast<u16>(sh.walk.end ? min(sh.walk.end, limit) : limit);
    }
    if (sh.walk.end > WINDOW) {
        int window_start = job.tile_start - static_cast<int>(HALO_LEFT);
        for (u32 word = WINDOW / 4 + threadIdx.x; word < ARENA / 4; word += THREADS) {
            sh.text[word] = load_word(batch, job, window_start + static_cast<int>(word * 4));
        }
    }
    __syncthreads();
}

extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS_PER_SM) encode(const Tables t, const Batch batch) {
    __shared__ Shared sh;
    if (blockIdx.x < batch.n_fetchers) return fetch_chunks(batch);
    Job job;
    job.tile = blockIdx.x - batch.n_fetchers;
    const bool early = batch.n_fetchers == 0 && job.tile < EARLY_TILES;
    if (batch.n_fetchers) {
        if (threadIdx.x == 0) sh.header = await_header(batch);
        __syncthreads();
        const Header header = sh.header;
        job.n_bytes = header.n_bytes;
        job.n_documents = header.n_documents;
        job.flags = header.flags;
        job.epoch = header.epoch;
    } else {
        // One load for what every block needs at once: the header may lie on the other side of the bus.
        const uint4 header = *reinterpret_cast<const uint4*>(batch.header);
        if (early) load_early(sh, batch, job.tile);
        job.n_bytes = header.z;
        job.n_documents = header.w;
        job.flags = batch.header->flags;
        job.epoch = static_cast<u64>(header.y) << 32 | header.x;
    }
    const u32 n_tiles = max(1u, (job.n_bytes + TILE - 1) / TILE);
    if (job.tile >= n_tiles) return;
    job.tile_start = static_cast<int>(job.tile * TILE);

    split_tile(sh, t, batch, job, early);
    list_pretokens(sh, batch, job);
    for (u32 index = threadIdx.x; index < sh.n_pretokens; index += THREADS) look_up(sh, t, batch, job, index);
    __syncthreads();
    merge_misses(sh, t);
    __syncthreads();
    if (warp_id() == 0) rank_tokens(sh);
    __syncthreads();
    if (warp_id() == 0) {
        u32 base = look_back(TileStates{batch.tile_states, job.epoch, sh.walk.filled}, job.tile, sh.n_tokens);
        if (lane_id() == 0) sh.base = base;
    }
    collect_tokens(sh);
    __syncthreads();
    write_tokens(sh, batch, job);
    write_documents(sh, batch, job, job.tile == n_tiles - 1);
    complete(sh, batch, job, sh.n_tokens, n_tiles);
}
