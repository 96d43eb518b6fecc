// The decimal kernel as a host library, see host.cpp.
#include "decimal.cu"

extern "C" {

void sidetok_decimal(const Batch* batch, const Job* job, unsigned n_blocks, int backwards) {
    for (unsigned i = 0; i < n_blocks; ++i) {
        shim::run_block(i, THREADS, backwards != 0, [=] { decimal(*batch, *job); });
    }
}

// Sizes, offsets and constants in the order in which tests/gpu_core/test_decimal_kernel.py names them. Returns how many.
unsigned sidetok_decimal_layout(unsigned* output) {
    const unsigned values[] = {
        THREADS,
        TILE_IDS,
        MAX_TEXT,
        sizeof(Batch),
        offsetof(Batch, ids),
        offsetof(Batch, document_tokens),
        offsetof(Batch, encoded),
        offsetof(Batch, written_ids),
        offsetof(Batch, written_tokens),
        offsetof(Batch, decimals),
        offsetof(Batch, document_decimals),
        offsetof(Batch, completion),
        offsetof(Batch, states),
        offsetof(Batch, control),
        sizeof(Job),
        offsetof(Job, epoch),
        offsetof(Job, n_documents),
        offsetof(Job, room),
        sizeof(Control),
        offsetof(Control, blocks_done),
        offsetof(Control, reserved),
        sizeof(Completion),
        offsetof(Completion, epoch),
        offsetof(Completion, n_tokens),
        offsetof(Completion, any_flagged),
    };
    std::memcpy(output, values, sizeof(values));
    return sizeof(values) / sizeof(*values);
}
}
