// The decoding kernel as a host library, see host.cpp.
#include "decode.cu"

extern "C" {

void sidetok_decode(const Tables* tables, const Batch* batch, const Job* job, unsigned n_blocks, int backwards) {
    for (unsigned i = 0; i < n_blocks; ++i) {
        shim::run_block(i, THREADS, backwards != 0, [=] { decode(*tables, *batch, *job); });
    }
}

// Sizes, offsets and constants in the order in which tests/gpu_core/test_decode_kernel.py names them. Returns how many.
unsigned sidetok_decode_layout(unsigned* output) {
    const unsigned values[] = {
        THREADS,
        TILE_IDS,
        STAGE,
        INLINE,
        SPECIAL,
        LENGTH_BITS,
        FLAG_SKIP_SPECIAL,
        sizeof(Tables),
        offsetof(Tables, pieces),
        offsetof(Tables, pool),
        offsetof(Tables, n_ids),
        offsetof(Tables, reserved),
        sizeof(Batch),
        offsetof(Batch, ids),
        offsetof(Batch, sequence_starts),
        offsetof(Batch, bytes),
        offsetof(Batch, sequence_bytes),
        offsetof(Batch, tile_states),
        offsetof(Batch, control),
        offsetof(Batch, completion),
        sizeof(Job),
        offsetof(Job, epoch),
        offsetof(Job, n_ids),
        offsetof(Job, n_sequences),
        offsetof(Job, flags),
        offsetof(Job, capacity),
        sizeof(Completion),
        offsetof(Completion, epoch),
        offsetof(Completion, n_bytes),
        offsetof(Completion, reserved),
        sizeof(Control),
        offsetof(Control, blocks_done),
        offsetof(Control, reserved),
    };
    std::memcpy(output, values, sizeof(values));
    return sizeof(values) / sizeof(*values);
}
}
