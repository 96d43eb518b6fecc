// Normal form (NFC) of a segment, by one thread: a character and the marks behind it, taken apart, put in order, put together.
//
//   segment      o ◌́ ◌̣           U+006F, U+0301 of class 230, U+0323 of class 220
//   parts        o ◌̣ ◌́           canonical decomposition; marks by class, those of one class in the order of the text
//   composed     ọ ◌́             o with each part behind it, unless one of the same or a higher class stays between
//   normal form  U+1ECD U+0301
//
// The tables are the reference engine's, see gpu_core/normal_tables.py. Hangul goes by rule.
#pragma once

#include "portable.cuh"

constexpr u32 MAX_SEGMENT = 120, MAX_PARTS = 32, MAX_RESULT = 120, MAX_GROWTH = 3;
constexpr u32 MAY_CHANGE = 255;  // a class in the quick check
constexpr u32 ITSELF = 0x8000;   // in a detail
constexpr u32 CLASS_AT = 24;     // in a part
constexpr u32 LEADS = 0x1100, VOWELS = 0x1161, TAILS = 0x11a7, SYLLABLES = 0xac00;
constexpr u32 N_LEADS = 19, N_VOWELS = 21, N_TAILS = 28, N_SYLLABLES = N_LEADS * N_VOWELS * N_TAILS;

struct Tables {
    const u16* class_pages;  // class of c: class_blocks[class_pages[c >> 8] * 256 + (c & 255)]
    const u8* class_blocks;
    const u16* detail_pages;  // detail of c, likewise
    const u16* detail_blocks;
    const uint4* decompositions;  // up to four parts
    const u64* compositions;      // first << 42 | second << 21 | composed
    u32 a0, a1, b0, b1, shift;
    u32 reserved;
    u32 endings[4], letters[4];  // ASCII characters that end an added token, and that stand in one
};

// Code points with their combining classes above.
struct Parts {
    u32 part[MAX_PARTS];
    u32 n;
};

__device__ __forceinline__ u32 code_of(u32 part) { return part & bits_below(CLASS_AT); }

// The class of a code point in the quick check.
__device__ __forceinline__ u32 class_of(const Tables& t, u32 code) {
    return __ldg(&t.class_blocks[__ldg(&t.class_pages[code >> 8]) * 256 + (code & 255)]);
}

__device__ __forceinline__ bool is_in(const u32 (&characters)[4], u32 code) {
    // Words by number would make the compiler copy the parameters into memory.
    const u32 low = code & 32 ? characters[1] : characters[0], high = code & 32 ? characters[3] : characters[2];
    return code < 128 && ((code & 64 ? high : low) >> (code & 31) & 1);
}

// Adds a part where it belongs; false when there is no room.
__device__ __forceinline__ bool add_part(Parts& p, u32 part) {
    if (p.n == MAX_PARTS) return false;
    u32 at = p.n++;
    if (part >> CLASS_AT) {
        for (; at && p.part[at - 1] >> CLASS_AT > part >> CLASS_AT; --at) p.part[at] = p.part[at - 1];
    }
    p.part[at] = part;
    return true;
}

// Adds all parts of a code point; false when there is no room.
__device__ __forceinline__ bool decompose(const Tables& t, Parts& p, u32 code) {
    if (code < 0x80) return add_part(p, code);
    if (code - SYLLABLES < N_SYLLABLES) {
        const u32 index = code - SYLLABLES, tail = index % N_TAILS, syllable = index / N_TAILS;
        const bool fits = add_part(p, LEADS + syllable / N_VOWELS) && add_part(p, VOWELS + syllable % N_VOWELS);
        return fits && (tail == 0 || add_part(p, TAILS + tail));
    }
    const u32 detail = __ldg(&t.detail_blocks[__ldg(&t.detail_pages[code >> 8]) * 256 + (code & 255)]);
    if (detail == 0) return add_part(p, class_of(t, code) << CLASS_AT | code);
    if (detail & ITSELF) return add_part(p, (detail & 255) << CLASS_AT | code);
    const uint4 row = __ldg(&t.decompositions[detail]);
    bool fits = add_part(p, row.x);
    if (row.y) fits = fits && add_part(p, row.y);
    if (row.z) fits = fits && add_part(p, row.z);
    if (row.w) fits = fits && add_part(p, row.w);
    return fits;
}

// What two code points compose into, or 0.
__device__ __forceinline__ u32 composed_of(const Tables& t, u32 first, u32 second) {
    if (first - LEADS < N_LEADS && second - VOWELS < N_VOWELS) {
        return SYLLABLES + ((first - LEADS) * N_VOWELS + second - VOWELS) * N_TAILS;
    }
    if (first - SYLLABLES < N_SYLLABLES && second - TAILS - 1 < N_TAILS - 1) {
        return (first - SYLLABLES) % N_TAILS == 0 ? first + second - TAILS : 0;
    }
    const u64 key = static_cast<u64>(first) << 21 | second;
    const u64 one = __ldg(&t.compositions[(first * t.a0 + second * t.a1) >> t.shift]);
    const u64 other = __ldg(&t.compositions[(first * t.b0 + second * t.b1) >> t.shift]);
    const u64 slot = one >> 21 == key ? one : other;
    return slot >> 21 == key ? static_cast<u32>(slot) & bits_below(21) : 0;
}

// Puts together what composes, in place.
__device__ __forceinline__ void compose(const Tables& t, Parts& p) {
    u32 n = 0, starter = FULL, last = 0;  // what stays, the last of it that marks may join, the class of the last one
    for (u32 i = 0; i < p.n; ++i) {
        const u32 part = p.part[i], own = part >> CLASS_AT;
        if (starter != FULL && (n == starter + 1 || last < own)) {
            const u32 composed = composed_of(t, code_of(p.part[starter]), code_of(part));
            if (composed) {
                p.part[starter] = composed;
                continue;
            }
        }
        if (own == 0) starter = n;
        last = own;
        p.part[n++] = part;
    }
    p.n = n;
}

__device__ __forceinline__ u32 n_bytes_of(u32 code) {
    return code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
}

// Writes a code point in UTF-8 and returns where the next one goes.
__device__ __forceinline__ u8* write_code(u8* to, u32 code) {
    const u32 n = n_bytes_of(code);
    if (n == 1) {
        *to++ = static_cast<u8>(code);
        return to;
    }
    *to++ = static_cast<u8>((0xf00u >> n & 0xff) | code >> (6 * (n - 1)));
    for (u32 k = n - 1; k > 0; --k) *to++ = static_cast<u8>(0x80 | (code >> (6 * (k - 1)) & 0x3f));
    return to;
}

// The code point of a well-formed character; `n` gets its bytes.
__device__ __forceinline__ u32 read_code(const u8* at, u32& n) {
    const u32 lead = at[0];
    n = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    u32 code = n == 1 ? lead : lead & (0x7fu >> n);
    for (u32 k = 1; k < n; ++k) code = code << 6 | (at[k] & 0x3fu);
    return code;
}

// Writes the normal form of the segment [text, end) and returns its bytes; 0 when it is left alone, because it is too long or
// could make or break an added token (normalize.cu).
__device__ __forceinline__ u32 write_normal_form(const Tables& t, const u8* text, const u8* end, u8* to) {
    Parts p;
    p.n = 0;
    u32 n, max_bytes = min(MAX_RESULT, MAX_GROWTH * static_cast<u32>(end - text));
    const u32 first = read_code(text, n);
    for (; text < end; text += n) {
        if (!decompose(t, p, read_code(text, n))) return 0;
    }
    compose(t, p);
    const u32 begin = code_of(p.part[0]);
    if (begin != first && (is_in(t.endings, first) || is_in(t.letters, begin))) return 0;
    u32 n_bytes = n_bytes_of(begin);
    for (u32 i = 1; i < p.n; ++i) {
        const u32 code = code_of(p.part[i]);
        if (is_in(t.letters, code)) return 0;
        n_bytes += n_bytes_of(code);
    }
    if (n_bytes > max_bytes) return 0;
    for (u32 i = 0; i < p.n; ++i) to = write_code(to, code_of(p.part[i]));
    return n_bytes;
}
