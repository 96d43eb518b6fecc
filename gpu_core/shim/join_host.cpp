// The joining kernel as a host library, see host.cpp.
#include "join.cu"

extern "C" {

void sidetok_join(const Batch* batch, const Job* job, unsigned n_blocks, int backwards) {
    for (unsigned i = 0; i < n_blocks; ++i) {
        shim::run_block(i, THREADS, backwards != 0, [=] { join(*batch, *job); });
    }
}

// Sizes, offsets and constants in the order in which tests/gpu_core/test_join_kernel.py names them. Returns how many.
unsigned sidetok_join_layout(unsigned* output) {
    const unsigned values[] = {
        THREADS,
        PIECES,
        SEARCHED,
        FLAG_IDS,
        FLAG_TOKEN_STARTS,
        EPOCH_SHIFT,
        REFUSED,
        NO_SEAM,
        SHIFT_AT,
        sizeof(Batch),
        offsetof(Batch, ids),
        offsetof(Batch, token_starts),
        offsetof(Batch, document_tokens),
        offsetof(Batch, document_starts),
        offsetof(Batch, document_flags),
        offsetof(Batch, places),
        offsetof(Batch, joined_ids),
        offsetof(Batch, joined_starts),
        offsetof(Batch, piece_tokens),
        offsetof(Batch, reports),
        offsetof(Batch, states),
        offsetof(Batch, control),
        offsetof(Batch, completion),
        sizeof(Job),
        offsetof(Job, epoch),
        offsetof(Job, n_bytes),
        offsetof(Job, n_pieces),
        offsetof(Job, flags),
        offsetof(Job, reserved),
        sizeof(Completion),
        offsetof(Completion, epoch),
        offsetof(Completion, n_tokens),
        offsetof(Completion, any_flagged),
    };
    std::memcpy(output, values, sizeof(values));
    return sizeof(values) / sizeof(*values);
}
}
