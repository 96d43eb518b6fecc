// The first node of a replay of more text than is worth reading over the bus twice: it copies what is live to the device. A copy
// node of a graph cannot do that, because its length is fixed at capture.
//
//   host     header   document starts   text.................
//               │            │             │ n_bytes of it, each thread every so many'th item of 16 bytes
//   device   header   document starts   text.................
#include "structs.cuh"

struct Fetch {
    const Header* host_header;
    Header* header;
    const u32* host_document_starts;
    u32* document_starts;
    const u8* host_text;
    u8* text;
};

constexpr u32 IN_FLIGHT = 4;  // loads of a thread before its first store

// Both sides are aligned to 16 bytes and have room for a whole last item.
__device__ __forceinline__ void copy_live(void* to, const void* from, u32 n_bytes) {
    const uint4* source = static_cast<const uint4*>(from);
    uint4* target = static_cast<uint4*>(to);
    const u32 n_items = (n_bytes + 15) / 16, step = gridDim.x * blockDim.x;
    for (u32 first = blockIdx.x * blockDim.x + threadIdx.x; first < n_items; first += step * IN_FLIGHT) {
        uint4 held[IN_FLIGHT];
#pragma unroll
        for (u32 k = 0; k < IN_FLIGHT; ++k) {
            if (first + k * step < n_items) held[k] = source[first + k * step];
        }
#pragma unroll
        for (u32 k = 0; k < IN_FLIGHT; ++k) {
            if (first + k * step < n_items) target[first + k * step] = held[k];
        }
    }
}

extern "C" __global__ void fetch(const Fetch job) {
    const Header header = *job.host_header;
    if (blockIdx.x == 0 && threadIdx.x == 0) *job.header = header;
    copy_live(job.text, job.host_text, header.n_bytes);
    copy_live(job.document_starts, job.host_document_starts, (header.n_documents + 1) * 4);
}
