// Structs and constants that host and device share. The same in NumPy: gpu_core/layout.py; a test compares the two.
#pragma once

#include "completion.cuh"

#ifndef SIDETOK_FAMILY
#define SIDETOK_FAMILY 1
#endif

constexpr u32 THREADS = 256;
// Many short waits for tables hide each other: full occupancy is worth a few spilled registers (measured on an H200).
#if defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
constexpr u32 BLOCKS_PER_SM = 6;  // 1,536 threads
#else
constexpr u32 BLOCKS_PER_SM = 8;
#endif
constexpr u32 N_WARPS = THREADS / 32;
constexpr u32 WINDOW = 1024;
constexpr u32 WORDS = WINDOW / 32;
constexpr u32 HALO_LEFT = 64;
// BPE over characters looks further ahead: runs of added tokens.
constexpr u32 TILE = SIDETOK_FAMILY == 5 ? 832 : 896;
constexpr u32 TILE_END = HALO_LEFT + TILE;  // as a position in the window
constexpr u32 MAX_PRETOKEN = 512;
constexpr u32 ARENA = TILE_END + MAX_PRETOKEN;  // positions of a window and of the longest pre-token that leaves it
constexpr u32 ARENA_WORDS = ARENA / 32;
constexpr u32 MAX_LITERAL = 64;
constexpr u32 MAX_WALK = 1u << 20;

constexpr u32 FLAG_IDS = 1;
constexpr u32 FLAG_TOKEN_STARTS = 2;
constexpr u32 FLAG_NORMAL_FORM = 4;

enum Reason : u32 { TOO_LONG = 1, INVALID_UTF8 = 2, NOT_NORMAL = 3, LITERAL = 4, LONG_WALK = 5 };
constexpr u32 EPOCH_SHIFT = 4;

struct Header {
    u64 epoch;
    u32 n_bytes;
    u32 n_documents;
    u32 flags;
    u32 reserved;
};

// Sums over the blocks of a replay, in one word: how many are done (20 bits), their tokens (27 bits); and whether a document needs the
// CPU. The last block clears it.
struct Control {
    u64 sums;
};
constexpr u32 SUM_TOKENS_SHIFT = 20;
constexpr u64 SUM_TOKENS = (1u << 27) - 1, SUM_FLAGGED = 1ull << 63;

// The header as it goes from block to block: epoch, and 1 << 63 | flags << 52 | n_documents << 26 | n_bytes.
struct Fetched {
    u64 epoch, sizes;
    u64 reserved[14];
};

struct Batch {
    const Header* header;
    const u8* text;
    const u32* document_starts;
    u32* ids;
    u32* token_starts;
    u32* document_tokens;
    u32* document_flags;
    u64* tile_states;
    Control* control;
    Completion* completion;
    u8* reasons;  // a byte for each document, of a replay that flags some
    // The rest serves blocks that fetch, see fetch.cuh. Without them text and document starts are read where they lie.
    Fetched* fetched;  // one for each of the blocks
    u64* arrived;      // epochs by chunk
    Fetched* next_fetched;
    const u8* far_text;
    const u32* far_document_starts;
    u32 n_fetchers;
    u32 reserved;
};

// Odd factors for the words of a key, one set for each of its two slots, and 32 - the bits of a slot number.
struct WideHash {
    u32 a0, a1, a2, a3, b0, b1, b2, b3, shift;
};
struct PairHash {
    u32 a0, a1, b0, b1, shift;
};

struct Tables {
    const u8* ascii;         // class code of each byte below 128; bit 7: an added token may begin with this byte
    const u16* class_pages;  // class code of c: class_blocks[class_pages[c >> 8] * 256 + (c & 255)]
    const u8* class_blocks;
    const u16* nfc_pages;  // combining class, or 255
    const u8* nfc_blocks;
    const uint4* short_slots;  // entries of up to 12 bytes: the bytes, and id << 4 | length
    const uint4* long_slots;   // (low hash word, offset in pool, length, id)
    const u64* merge_slots;    // left << 46 | right << 28 | order; with SIDETOK_RANK_IDS two words, see merge.cuh
    const u32* byte_ids;
    const uint4* literal_slots;  // like long_slots; bit 31 of the id: needs the CPU
    const u32* literal_bigrams;  // bit first << 8 | second: a literal begins so
    const u32* pool;
    // BPE over characters only, see bridge.cuh; null for the other families.
    const u32* ascii_pairs;       // bit y of the four words of x: no cut between these neighbours
    const u32* pair_bits;         // the same for pairs beyond ASCII, hashed
    const u16* character_pages;   // first symbol of c: character_blocks[character_pages[c >> 8] * 256 + (c & 255)]
    const u32* character_blocks;  // or NO_SYMBOL
    const uint4* runs;            // (code point, shortest, longest, first place in run_ids)
    const u32* run_ids;
    WideHash short_hash;
    PairHash merge_hash, long_hash, literal_hash;
    u32 pair_a, pair_b;
    u32 max_literal;
    u32 n_runs;
};
