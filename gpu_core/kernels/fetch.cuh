// Text that is not worth reading over the bus twice: the first blocks of a replay copy what is live to the device, in order, and the
// other blocks begin as soon as theirs is there. Blocks with lower numbers start first, so that whoever waits waits for one that runs.
//
//   host      header ──► fetched   document starts │ text . . . . . . . . . .
//   chunk                          0               │ 1   2   3   4   5   ...     8 KiB each; block b copies b, b + n, b + 2n
//   arrived                        e               │ e   e   .   e   .           the replay's epoch once a chunk is there
//
// Hundreds of blocks wait for a header and for chunks at a time, and must not all ask in the same place: each fetcher hands on a copy
// of the header, and what is polled lies 128 bytes apart. `fetched` lies twice: a replay clears what the next one uses, so that what is
// not 0 is of this replay.
#pragma once

#include "structs.cuh"

constexpr u32 CHUNK = 8192;
constexpr u32 CHUNK_LOADS = CHUNK / 16 / THREADS;  // of each thread, all before its first store
constexpr u32 ARRIVED_STRIDE = 16;                 // words from one chunk's to the next one's
constexpr u32 POLL_NS = 100;

// One document's borders are known without its starts.
__device__ __forceinline__ u32 n_start_chunks(u32 n_documents) {
    return n_documents > 1 ? ((n_documents + 1) * 4 + CHUNK - 1) / CHUNK : 0;
}

constexpr u32 SIZE_BITS = 26, FLAGS_SHIFT = 2 * SIZE_BITS;

// The header for other blocks, two words that are 0 until they are there.
__device__ __forceinline__ void publish_header(const Batch& batch, const Header& header) {
    volatile Fetched *own = &batch.fetched[blockIdx.x], *next = &batch.next_fetched[blockIdx.x];
    own->sizes = 1ull << 63 | static_cast<u64>(header.flags) << FLAGS_SHIFT |
                 static_cast<u64>(header.n_documents) << SIZE_BITS | header.n_bytes;
    own->epoch = header.epoch;
    next->epoch = next->sizes = 0;
}

__device__ __forceinline__ Header await_header(const Batch& batch) {
    const volatile Fetched* fetched = &batch.fetched[blockIdx.x % batch.n_fetchers];
    u64 epoch = fetched->epoch, sizes = fetched->sizes;
    while (!epoch || !sizes) {
        __nanosleep(POLL_NS);
        epoch = fetched->epoch;
        sizes = fetched->sizes;
    }
    constexpr u32 mask = (1u << SIZE_BITS) - 1;
    return {epoch, static_cast<u32>(sizes) & mask, static_cast<u32>(sizes >> SIZE_BITS) & mask,
            static_cast<u32>(sizes >> FLAGS_SHIFT) & 15u, 0};
}

// Both sides are aligned to 16 bytes and have room for a whole last item.
__device__ __forceinline__ void copy_chunk(const void* to, const void* from, u32 chunk, u32 n_bytes) {
    const uint4* source = static_cast<const uint4*>(from);
    uint4* target = static_cast<uint4*>(const_cast<void*>(to));
    const u32 first = chunk * (CHUNK / 16) + threadIdx.x, n_items = (n_bytes + 15) / 16;
    uint4 held[CHUNK_LOADS];
    for (u32 k = 0; k < CHUNK_LOADS; ++k) {
        if (first + k * THREADS < n_items) held[k] = source[first + k * THREADS];
    }
    for (u32 k = 0; k < CHUNK_LOADS; ++k) {
        if (first + k * THREADS < n_items) target[first + k * THREADS] = held[k];
    }
}

// All that one of the first blocks does.
__device__ __forceinline__ void fetch_chunks(const Batch& batch) {
    const Header header = *batch.header;
    if (threadIdx.x == 0) publish_header(batch, header);
    const u32 n_starts = n_start_chunks(header.n_documents), n_chunks = n_starts + (header.n_bytes + CHUNK - 1) / CHUNK;
    volatile u64* arrived = batch.arrived;
    for (u32 chunk = blockIdx.x; chunk < n_chunks; chunk += batch.n_fetchers) {
        if (chunk < n_starts) {
            copy_chunk(batch.document_starts, batch.far_document_starts, chunk, (header.n_documents + 1) * 4);
        } else {
            copy_chunk(batch.text, batch.far_text, chunk - n_starts, header.n_bytes);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence();
            arrived[chunk * ARRIVED_STRIDE] = header.epoch;
        }
    }
}

// Waits for chunks [first, end). By one warp.
__device__ __forceinline__ void await_chunks(const Batch& batch, u64 epoch, u32 first, u32 end) {
    const volatile u64* arrived = batch.arrived;
    for (; first < end; first += 32) {
        u32 chunk = first + lane_id();
        while (__any_sync(FULL, chunk < end && arrived[chunk * ARRIVED_STRIDE] != epoch)) __nanosleep(POLL_NS);
    }
}

// Waits until bytes [from, to) of the text and all document starts are where the block reads them. By one warp.
__device__ __forceinline__ void await_text(const Batch& batch, u64 epoch, u32 n_bytes, u32 n_documents, int from,
                                           int to) {
    if (!batch.n_fetchers) return;
    const u32 n_starts = n_start_chunks(n_documents), first = from > 0 ? from : 0;
    const u32 end = to < static_cast<int>(n_bytes) ? to : n_bytes;
    await_chunks(batch, epoch, 0, n_starts);
    if (first < end) await_chunks(batch, epoch, n_starts + first / CHUNK, n_starts + (end - 1) / CHUNK + 1);
    __threadfence();
    __syncwarp();
}
