// The kernels as a host library: blocks one after the other, and entries that tests look into.
#include "encode.cu"

namespace {

// What a stage test wants to see of a tile, behind each other: starts, then code planes.
unsigned* stage_output = nullptr;

void starts_of_tile(const Tables& t, const Batch& batch) {
    __shared__ Shared sh;
    Job job{batch.header->n_bytes,
            batch.header->n_documents,
            batch.header->flags,
            batch.header->epoch,
            blockIdx.x,
            static_cast<int>(blockIdx.x * TILE)};
    split_tile(sh, t, batch, job, false);
    if (warp_id()) return;
    unsigned lane = lane_id(), *output = stage_output + blockIdx.x * (1 + N_CODE_PLANES) * WORDS;
    output[lane] = sh.start[lane];
    for (unsigned plane = 0; plane < N_CODE_PLANES; ++plane) output[(1 + plane) * WORDS + lane] = sh.code[plane][lane];
}

}  // namespace

extern "C" {

void sidetok_encode(const Tables* tables, const Batch* batch, unsigned n_blocks, int backwards) {
    for (unsigned i = 0; i < n_blocks; ++i)
        shim::run_block(i, THREADS, backwards != 0, [=] { encode(*tables, *batch); });
}

void sidetok_starts(const Tables* tables, const Batch* batch, unsigned n_blocks, unsigned* output) {
    stage_output = output;
    for (unsigned i = 0; i < n_blocks; ++i) {
        shim::run_block(i, THREADS, false, [=] { starts_of_tile(*tables, *batch); });
    }
    batch->control->sums = 0;  // as the last block of a whole replay leaves it
}

// Sizes, offsets and constants in the order in which tests/gpu_core/test_shim.py names them. Returns how many.
unsigned sidetok_layout(unsigned* output) {
    const unsigned values[] = {
        THREADS,
        WINDOW,
        HALO_LEFT,
        TILE,
        MAX_PRETOKEN,
        MAX_LITERAL,
        MAX_WALK,
        EPOCH_SHIFT,
        CHUNK,
        ARRIVED_STRIDE,
        N_CODE_PLANES,
        sizeof(Header),
        offsetof(Header, epoch),
        offsetof(Header, n_bytes),
        offsetof(Header, n_documents),
        offsetof(Header, flags),
        offsetof(Header, reserved),
        sizeof(Completion),
        offsetof(Completion, epoch),
        offsetof(Completion, n_tokens),
        offsetof(Completion, any_flagged),
        sizeof(Control),
        offsetof(Control, sums),
        sizeof(Fetched),
        offsetof(Fetched, epoch),
        offsetof(Fetched, sizes),
        offsetof(Fetched, reserved),
        sizeof(Batch),
        offsetof(Batch, header),
        offsetof(Batch, text),
        offsetof(Batch, document_starts),
        offsetof(Batch, ids),
        offsetof(Batch, token_starts),
        offsetof(Batch, document_tokens),
        offsetof(Batch, document_flags),
        offsetof(Batch, tile_states),
        offsetof(Batch, control),
        offsetof(Batch, completion),
        offsetof(Batch, reasons),
        offsetof(Batch, fetched),
        offsetof(Batch, arrived),
        offsetof(Batch, next_fetched),
        offsetof(Batch, far_text),
        offsetof(Batch, far_document_starts),
        offsetof(Batch, n_fetchers),
        offsetof(Batch, reserved),
        sizeof(Tables),
        offsetof(Tables, ascii),
        offsetof(Tables, class_pages),
        offsetof(Tables, class_blocks),
        offsetof(Tables, nfc_pages),
        offsetof(Tables, nfc_blocks),
        offsetof(Tables, short_slots),
        offsetof(Tables, long_slots),
        offsetof(Tables, merge_slots),
        offsetof(Tables, byte_ids),
        offsetof(Tables, literal_slots),
        offsetof(Tables, literal_bigrams),
        offsetof(Tables, pool),
        offsetof(Tables, ascii_pairs),
        offsetof(Tables, pair_bits),
        offsetof(Tables, character_pages),
        offsetof(Tables, character_blocks),
        offsetof(Tables, runs),
        offsetof(Tables, run_ids),
        offsetof(Tables, short_hash.a0),
        offsetof(Tables, short_hash.a1),
        offsetof(Tables, short_hash.a2),
        offsetof(Tables, short_hash.a3),
        offsetof(Tables, short_hash.b0),
        offsetof(Tables, short_hash.b1),
        offsetof(Tables, short_hash.b2),
        offsetof(Tables, short_hash.b3),
        offsetof(Tables, short_hash.shift),
        offsetof(Tables, merge_hash.a0),
        offsetof(Tables, merge_hash.a1),
        offsetof(Tables, merge_hash.b0),
        offsetof(Tables, merge_hash.b1),
        offsetof(Tables, merge_hash.shift),
        offsetof(Tables, long_hash.a0),
        offsetof(Tables, long_hash.a1),
        offsetof(Tables, long_hash.b0),
        offsetof(Tables, long_hash.b1),
        offsetof(Tables, long_hash.shift),
        offsetof(Tables, literal_hash.a0),
        offsetof(Tables, literal_hash.a1),
        offsetof(Tables, literal_hash.b0),
        offsetof(Tables, literal_hash.b1),
        offsetof(Tables, literal_hash.shift),
        offsetof(Tables, pair_a),
        offsetof(Tables, pair_b),
        offsetof(Tables, max_literal),
        offsetof(Tables, n_runs),
    };
    std::memcpy(output, values, sizeof(values));
    return sizeof(values) / sizeof(*values);
}
}
