#pragma once

// What the x86 instruction sets share. See simd.h.

#include <immintrin.h>

#include <cstdint>
#include <cstring>

namespace mto::MTO_ISA {
namespace {

// Stores the lower Bytes bytes.
template <int Bytes>
inline void store_bytes(__m128i v, uint8_t* p) {
  int64_t low = _mm_cvtsi128_si64(v);
  std::memcpy(p, &low, Bytes < 8 ? Bytes : 8);
  if constexpr (Bytes > 8) {
    int64_t high = _mm_extract_epi64(v, 1);
    std::memcpy(p + 8, &high, Bytes - 8);
  }
}

template <int Bits>
struct PackedBytes {
  alignas(16) uint8_t bytes[16] = {};
  constexpr PackedBytes() {
    for (int i = 0; i < 2 * Bits; ++i) bytes[i] = static_cast<uint8_t>(i / Bits * 8 + i % Bits);
  }
};

// Packs 32 codes of a byte each. Neighbours are joined twice by multiplying and adding; then
// lane-wise shifts close the gap in the middle of each group of eight, and a shuffle the gaps
// between them.
template <int Bits>
inline void pack_bytes(__m256i codes, uint8_t* block) {
  if constexpr (Bits == 8) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(block), codes);
  } else {
    constexpr int kGap = 32 - 4 * Bits;
    __m256i pairs = _mm256_maddubs_epi16(codes, _mm256_set1_epi16(1 | 1 << (8 + Bits)));
    __m256i quads = _mm256_madd_epi16(pairs, _mm256_set1_epi32(1 | 1 << (16 + 2 * Bits)));
    __m256i joined = _mm256_sllv_epi32(quads, _mm256_set1_epi64x(kGap));
    __m256i eights = _mm256_srli_epi64(joined, kGap);
    static constexpr PackedBytes<Bits> order;
    __m256i packed = _mm256_shuffle_epi8(
        eights,
        _mm256_broadcastsi128_si256(_mm_load_si128(reinterpret_cast<const __m128i*>(order.bytes))));
    store_bytes<2 * Bits>(_mm256_castsi256_si128(packed), block);
    store_bytes<2 * Bits>(_mm256_extracti128_si256(packed, 1), block + 2 * Bits);
  }
}

}  // namespace
}  // namespace mto::MTO_ISA
