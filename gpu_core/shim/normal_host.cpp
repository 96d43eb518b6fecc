// The normalizing kernel as a host library, see host.cpp.
#include "normalize.cu"

extern "C" {

void sidetok_normalize(const Tables* tables, const Batch* batch, const Job* job, unsigned n_blocks, int backwards) {
    for (unsigned i = 0; i < n_blocks; ++i) {
        shim::run_block(i, THREADS, backwards != 0, [=] { normalize(*tables, *batch, *job); });
    }
}

// Sizes, offsets and constants in the order in which tests/gpu_core/test_normal_kernel.py names them. Returns how many.
unsigned sidetok_normal_layout(unsigned* output) {
    const unsigned values[] = {
        THREADS,
        WINDOW,
        HALO,
        TILE,
        MAX_SEGMENT,
        MAX_PARTS,
        MAX_RESULT,
        MAX_GROWTH,
        FLAG_NORMAL_FORM,
        NOT_NORMAL,
        EPOCH_SHIFT,
        MAY_CHANGE,
        ITSELF,
        CLASS_AT,
        sizeof(Tables),
        offsetof(Tables, class_pages),
        offsetof(Tables, class_blocks),
        offsetof(Tables, detail_pages),
        offsetof(Tables, detail_blocks),
        offsetof(Tables, decompositions),
        offsetof(Tables, compositions),
        offsetof(Tables, a0),
        offsetof(Tables, a1),
        offsetof(Tables, b0),
        offsetof(Tables, b1),
        offsetof(Tables, shift),
        offsetof(Tables, reserved),
        offsetof(Tables, endings),
        offsetof(Tables, letters),
        sizeof(Batch),
        offsetof(Batch, source_text),
        offsetof(Batch, source_starts),
        offsetof(Batch, text),
        offsetof(Batch, document_starts),
        offsetof(Batch, header),
        offsetof(Batch, document_flags),
        offsetof(Batch, encode_control),
        offsetof(Batch, states),
        offsetof(Batch, control),
        sizeof(Job),
        offsetof(Job, epoch),
        offsetof(Job, n_bytes),
        offsetof(Job, n_documents),
        offsetof(Job, flags),
        offsetof(Job, capacity),
        sizeof(Control),
        offsetof(Control, sums),
        sizeof(Header),
        offsetof(Header, epoch),
        offsetof(Header, n_bytes),
        offsetof(Header, n_documents),
        offsetof(Header, flags),
        offsetof(Header, reserved),
    };
    std::memcpy(output, values, sizeof(values));
    return sizeof(values) / sizeof(*values);
}
}
