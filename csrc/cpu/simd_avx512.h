#pragma once

// AVX-512 F, BW, VL and DQ: 16 lanes. See simd.h for the contract.

#include <immintrin.h>

#include "common/float_type.h"
#include "cpu/half.h"
#include "cpu/simd_x86.h"

namespace mto::avx512 {
namespace {

using Vec = __m512;
using Codes = __m512i;
constexpr int kLanes = 16;
constexpr int kRegisters = 32;
constexpr int kLookupBits = 5;

inline Vec zero() { return _mm512_setzero_ps(); }
inline Vec broadcast(float value) { return _mm512_set1_ps(value); }
inline Vec load(const float* p) { return _mm512_loadu_ps(p); }
inline void store(float* p, Vec v) { _mm512_storeu_ps(p, v); }
inline Vec gather(const float* p, int n) {
  const Codes iota = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  return _mm512_i32gather_ps(_mm512_mullo_epi32(iota, _mm512_set1_epi32(n)), p, 4);
}
inline Vec fma(Vec a, Vec b, Vec c) { return _mm512_fmadd_ps(a, b, c); }
inline Vec add(Vec a, Vec b) { return _mm512_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm512_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm512_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm512_div_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm512_min_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm512_max_ps(a, b); }
inline Vec nearest(Vec v) {
  return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Vec scaled(Vec v, Vec n) { return _mm512_scalef_ps(v, n); }
inline Vec select(Vec a, Vec b, Vec x, Vec y) {
  return _mm512_mask_blend_ps(_mm512_cmp_ps_mask(a, b, _CMP_LT_OQ), y, x);
}
inline float total(Vec v) { return _mm512_reduce_add_ps(v); }
inline float lowest(Vec v) { return _mm512_reduce_min_ps(v); }
inline float highest(Vec v) { return _mm512_reduce_max_ps(v); }

inline Vec load_as(FloatType type, const void* base, int64_t index) {
  if (type == FloatType::kFloat32) return load(static_cast<const float*>(base) + index);
  auto p = reinterpret_cast<const __m256i*>(static_cast<const uint16_t*>(base) + index);
  __m256i half = _mm256_loadu_si256(p);
  if (type == FloatType::kFloat16) return _mm512_cvtph_ps(half);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

// n < kLanes elements.
inline Vec load_first(FloatType type, const void* base, int64_t index, int n) {
  auto mask = static_cast<__mmask16>((1u << n) - 1);
  if (type == FloatType::kFloat32) {
    return _mm512_maskz_loadu_ps(mask, static_cast<const float*>(base) + index);
  }
  __m256i half = _mm256_maskz_loadu_epi16(mask, static_cast<const uint16_t*>(base) + index);
  if (type == FloatType::kFloat16) return _mm512_cvtph_ps(half);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

inline __m256i bf16_from_vec(Vec v) {
  __m512i bits = _mm512_castps_si512(v);
  __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
  __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
  __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x400000));
  __mmask16 nan = _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_mask_mov_epi32(rounded, nan, quiet), 16));
}

inline void store_as(FloatType type, void* base, int64_t index, Vec v) {
  if (type == FloatType::kFloat32) return store(static_cast<float*>(base) + index, v);
  auto p = reinterpret_cast<__m256i*>(static_cast<uint16_t*>(base) + index);
  bool f16 = type == FloatType::kFloat16;
  _mm256_storeu_si256(p, f16 ? _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                             : bf16_from_vec(v));
}

// Halves are added until one lane is left: 8 + 8, 4 + 4, 2 + 2, 1 + 1; four vectors share the
// shuffles.
inline void reduce4(Vec v0, Vec v1, Vec v2, Vec v3, float* out) {
  Vec v01 = _mm512_add_ps(_mm512_shuffle_f32x4(v0, v1, 0x44), _mm512_shuffle_f32x4(v0, v1, 0xee));
  Vec v23 = _mm512_add_ps(_mm512_shuffle_f32x4(v2, v3, 0x44), _mm512_shuffle_f32x4(v2, v3, 0xee));
  Vec all =
      _mm512_add_ps(_mm512_shuffle_f32x4(v01, v23, 0x88), _mm512_shuffle_f32x4(v01, v23, 0xdd));
  all = _mm512_add_ps(all, _mm512_permute_ps(all, 0x4e));
  all = _mm512_add_ps(all, _mm512_permute_ps(all, 0xb1));
  // Compressed in a register: the form that stores is microcoded on some processors.
  _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_maskz_compress_ps(0x1111, all)));
}

// Within lanes of four rows and columns; then the lanes themselves, as a square of 4 x 4.
inline void transpose(Vec (&rows)[16]) {
  Vec lanes[16];
  for (int i = 0; i < 16; i += 4) {
    Vec low01 = _mm512_unpacklo_ps(rows[i], rows[i + 1]);
    Vec high01 = _mm512_unpackhi_ps(rows[i], rows[i + 1]);
    Vec low23 = _mm512_unpacklo_ps(rows[i + 2], rows[i + 3]);
    Vec high23 = _mm512_unpackhi_ps(rows[i + 2], rows[i + 3]);
    lanes[i] = _mm512_shuffle_ps(low01, low23, 0x44);
    lanes[i + 1] = _mm512_shuffle_ps(low01, low23, 0xee);
    lanes[i + 2] = _mm512_shuffle_ps(high01, high23, 0x44);
    lanes[i + 3] = _mm512_shuffle_ps(high01, high23, 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    Vec even01 = _mm512_shuffle_f32x4(lanes[i], lanes[i + 4], 0x88);
    Vec odd01 = _mm512_shuffle_f32x4(lanes[i], lanes[i + 4], 0xdd);
    Vec even23 = _mm512_shuffle_f32x4(lanes[i + 8], lanes[i + 12], 0x88);
    Vec odd23 = _mm512_shuffle_f32x4(lanes[i + 8], lanes[i + 12], 0xdd);
    rows[i] = _mm512_shuffle_f32x4(even01, even23, 0x88);
    rows[i + 4] = _mm512_shuffle_f32x4(odd01, odd23, 0x88);
    rows[i + 8] = _mm512_shuffle_f32x4(even01, even23, 0xdd);
    rows[i + 12] = _mm512_shuffle_f32x4(odd01, odd23, 0xdd);
  }
}

// Where the codes of one vector lie in the window of bytes that is loaded for it. The window is
// moved back where it would pass the end of the block: no byte outside the block is read.
template <int Bits, int V>
struct Window {
  static constexpr int kBytes = Bits <= 2 ? 4 : Bits <= 4 ? 8 : 16;
  static constexpr int kFirst = V * 2 * Bits;
  static constexpr int kLast = 4 * Bits - kBytes;
  static constexpr int kOffset = kFirst < kLast ? kFirst : kLast;
  alignas(64) uint8_t bytes[64] = {};
  alignas(64) int32_t shifts[16] = {};
  constexpr Window() {
    for (int i = 0; i < 16; ++i) {
      int bit = 8 * (kFirst - kOffset) + Bits * i;
      int byte = kBytes == 4 ? 0 : bit / 8;
      for (int j = 0; j < 4; ++j) {
        bool inside = j < 2 && byte + j < kBytes;
        bytes[4 * i + j] = static_cast<uint8_t>(inside ? byte + j : 0x80);
      }
      shifts[i] = bit - 8 * byte;
    }
  }
};

template <int Bits, int V>
inline Codes unpack(const uint8_t* block) {
  if constexpr (Bits == 8) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(block + 16 * V)));
  } else {
    using W = Window<Bits, V>;
    static constexpr W window;
    const uint8_t* p = block + W::kOffset;
    Codes codes;
    if constexpr (W::kBytes == 4) {
      int32_t word;
      std::memcpy(&word, p, 4);
      codes = _mm512_set1_epi32(word);
    } else if constexpr (W::kBytes == 8) {
      int64_t word;
      std::memcpy(&word, p, 8);
      codes = _mm512_set1_epi64(word);
    } else {
      codes = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    }
    if constexpr (W::kBytes > 4)
      codes = _mm512_shuffle_epi8(codes, _mm512_load_si512(window.bytes));
    return _mm512_srlv_epi32(codes, _mm512_load_si512(window.shifts));
  }
}

inline Codes as_codes(Vec v) { return _mm512_castps_si512(v); }
template <int N>
inline Codes shift_left(Codes codes) {
  return _mm512_slli_epi32(codes, N);
}
template <int N>
inline Codes shift_right(Codes codes) {
  return _mm512_srli_epi32(codes, N);
}
inline Codes join(Codes a, Codes b) { return _mm512_or_si512(a, b); }
template <int Bits>
inline Codes low_bits(Codes codes) {
  return _mm512_and_si512(codes, _mm512_set1_epi32((1 << Bits) - 1));
}

template <int Bits>
inline Vec to_float(Codes codes) {
  if constexpr (Bits == 8) return _mm512_cvtepi32_ps(codes);
  return _mm512_cvtepi32_ps(_mm512_and_si512(codes, _mm512_set1_epi32((1 << Bits) - 1)));
}

template <int Bits>
inline Codes to_codes(Vec v) {
  return _mm512_cvtps_epi32(min(max(v, zero()), broadcast((1 << Bits) - 1)));
}

template <int Bits>
inline void pack(const Codes (&codes)[2], uint8_t* block) {
  pack_bytes<Bits>(
      _mm256_setr_m128i(_mm512_cvtepi32_epi8(codes[0]), _mm512_cvtepi32_epi8(codes[1])), block);
}

template <int Bits>
struct Lookup {
  Vec low, high;  // high is used by 5 bits only
};

// A table of f(code), f a function of vectors. Fewer than 4 bits: repeated, so that the bits above
// a code do not matter.
template <int Bits, typename F>
inline Lookup<Bits> make_lookup(F&& f) {
  const Codes iota = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  Lookup<Bits> table{f(to_float<Bits>(iota)), zero()};
  if constexpr (Bits == 5)
    table.high = f(to_float<Bits>(_mm512_add_epi32(iota, _mm512_set1_epi32(16))));
  return table;
}

template <int Bits>
inline Vec lookup(Codes codes, const Lookup<Bits>& table) {
  if constexpr (Bits == 5) return _mm512_permutex2var_ps(table.low, codes, table.high);
  return _mm512_permutexvar_ps(codes, table.low);
}

using Table = Vec;

template <typename F>
inline Table make_table(const float* levels, F&& f) {
  return f(load(levels));
}

inline Vec table_lookup(Codes codes, Table table) { return _mm512_permutexvar_ps(codes, table); }

template <int Bits>
inline Vec gathered(Codes codes, const float* levels) {
  return _mm512_i32gather_ps(_mm512_and_si512(codes, _mm512_set1_epi32((1 << Bits) - 1)), levels,
                             4);
}

inline Codes upper_nibble(Codes codes) { return _mm512_srli_epi32(codes, 4); }

}  // namespace
}  // namespace mto::avx512
