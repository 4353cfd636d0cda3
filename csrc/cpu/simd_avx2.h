#pragma once

// AVX2, FMA and F16C: 8 lanes. See simd.h for the contract.

#include <immintrin.h>

#include "common/float_type.h"
#include "cpu/half.h"
#include "cpu/simd_x86.h"

namespace mto::avx2 {
namespace {

using Vec = __m256;
using Codes = __m256i;
constexpr int kLanes = 8;
constexpr int kRegisters = 16;
constexpr int kLookupBits = 3;

inline Vec zero() { return _mm256_setzero_ps(); }
inline Vec broadcast(float value) { return _mm256_set1_ps(value); }
inline Vec load(const float* p) { return _mm256_loadu_ps(p); }
inline void store(float* p, Vec v) { _mm256_storeu_ps(p, v); }
inline Vec gather(const float* p, int n) {
  const Codes iota = _mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0);
  return _mm256_i32gather_ps(p, _mm256_mullo_epi32(iota, _mm256_set1_epi32(n)), 4);
}
inline Vec fma(Vec a, Vec b, Vec c) { return _mm256_fmadd_ps(a, b, c); }
inline Vec add(Vec a, Vec b) { return _mm256_add_ps(a, b); }
inline Vec sub(Vec a, Vec b) { return _mm256_sub_ps(a, b); }
inline Vec mul(Vec a, Vec b) { return _mm256_mul_ps(a, b); }
inline Vec div(Vec a, Vec b) { return _mm256_div_ps(a, b); }
inline Vec min(Vec a, Vec b) { return _mm256_min_ps(a, b); }
inline Vec max(Vec a, Vec b) { return _mm256_max_ps(a, b); }

inline Vec nearest(Vec v) {
  return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
// 2^n by its exponent bits.
inline Vec scaled(Vec v, Vec n) {
  __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
  return _mm256_mul_ps(v, _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23)));
}
inline Vec select(Vec a, Vec b, Vec x, Vec y) {
  return _mm256_blendv_ps(y, x, _mm256_cmp_ps(a, b, _CMP_LT_OQ));
}

inline float total(Vec v) {
  __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  s = _mm_add_ps(s, _mm_movehl_ps(s, s));
  return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

inline float lowest(Vec v) {
  __m128 m = _mm_min_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_min_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_min_ss(m, _mm_movehdup_ps(m)));
}

inline float highest(Vec v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  return _mm_cvtss_f32(_mm_max_ss(m, _mm_movehdup_ps(m)));
}

inline Vec load_as(FloatType type, const void* base, int64_t index) {
  if (type == FloatType::kFloat32) return load(static_cast<const float*>(base) + index);
  auto p = reinterpret_cast<const __m128i*>(static_cast<const uint16_t*>(base) + index);
  __m128i half = _mm_loadu_si128(p);
  if (type == FloatType::kFloat16) return _mm256_cvtph_ps(half);
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

inline __m128i bf16_from_vec(Vec v) {
  __m256i bits = _mm256_castps_si256(v);
  __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
  __m256i rounded = _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
  __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
  __m256 nan = _mm256_cmp_ps(v, v, _CMP_UNORD_Q);
  __m256i chosen = _mm256_blendv_epi8(rounded, quiet, _mm256_castps_si256(nan));
  __m256i words = _mm256_srli_epi32(chosen, 16);
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

inline void store_as(FloatType type, void* base, int64_t index, Vec v) {
  if (type == FloatType::kFloat32) return store(static_cast<float*>(base) + index, v);
  auto p = reinterpret_cast<__m128i*>(static_cast<uint16_t*>(base) + index);
  bool f16 = type == FloatType::kFloat16;
  _mm_storeu_si128(p, f16 ? _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
                          : bf16_from_vec(v));
}

// 4 + 4, then neighbours twice; four vectors share the shuffles.
inline void reduce4(Vec v0, Vec v1, Vec v2, Vec v3, float* out) {
  Vec all = _mm256_hadd_ps(_mm256_hadd_ps(v0, v1), _mm256_hadd_ps(v2, v3));
  _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(all), _mm256_extractf128_ps(all, 1)));
}

inline void transpose(Vec (&rows)[8]) {
  Vec lanes[8];
  for (int i = 0; i < 8; i += 4) {
    Vec low01 = _mm256_unpacklo_ps(rows[i], rows[i + 1]);
    Vec high01 = _mm256_unpackhi_ps(rows[i], rows[i + 1]);
    Vec low23 = _mm256_unpacklo_ps(rows[i + 2], rows[i + 3]);
    Vec high23 = _mm256_unpackhi_ps(rows[i + 2], rows[i + 3]);
    lanes[i] = _mm256_shuffle_ps(low01, low23, 0x44);
    lanes[i + 1] = _mm256_shuffle_ps(low01, low23, 0xee);
    lanes[i + 2] = _mm256_shuffle_ps(high01, high23, 0x44);
    lanes[i + 3] = _mm256_shuffle_ps(high01, high23, 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    rows[i] = _mm256_permute2f128_ps(lanes[i], lanes[i + 4], 0x20);
    rows[i + 4] = _mm256_permute2f128_ps(lanes[i], lanes[i + 4], 0x31);
  }
}

// As in simd_avx512.h: the bytes of one vector's codes, none read outside the block of 32.
template <int Bits, int V>
struct Window {
  static constexpr bool kShuffled = Bits == 3 || Bits == 5 || Bits == 6;
  static constexpr int kBytes = kShuffled ? 8 : 4;
  static constexpr int kFirst = V * Bits;
  static constexpr int kLast = 4 * Bits - kBytes;
  static constexpr int kOffset = kFirst < kLast ? kFirst : kLast;
  alignas(32) uint8_t bytes[32] = {};
  alignas(32) int32_t shifts[8] = {};
  constexpr Window() {
    for (int i = 0; i < 8; ++i) {
      int bit = 8 * (kFirst - kOffset) + Bits * i;
      int byte = kShuffled ? bit / 8 : 0;
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
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(block + 8 * V)));
  } else {
    using W = Window<Bits, V>;
    static constexpr W window;
    const uint8_t* p = block + W::kOffset;
    Codes codes;
    if constexpr (W::kShuffled) {
      int64_t word;
      std::memcpy(&word, p, 8);
      auto control = _mm256_load_si256(reinterpret_cast<const __m256i*>(window.bytes));
      codes = _mm256_shuffle_epi8(_mm256_set1_epi64x(word), control);
    } else {
      int32_t word;
      std::memcpy(&word, p, 4);
      codes = _mm256_set1_epi32(word);
    }
    return _mm256_srlv_epi32(codes,
                             _mm256_load_si256(reinterpret_cast<const __m256i*>(window.shifts)));
  }
}

inline Codes as_codes(Vec v) { return _mm256_castps_si256(v); }
template <int N>
inline Codes shift_left(Codes codes) {
  return _mm256_slli_epi32(codes, N);
}
template <int N>
inline Codes shift_right(Codes codes) {
  return _mm256_srli_epi32(codes, N);
}
inline Codes join(Codes a, Codes b) { return _mm256_or_si256(a, b); }
template <int Bits>
inline Codes low_bits(Codes codes) {
  return _mm256_and_si256(codes, _mm256_set1_epi32((1 << Bits) - 1));
}

template <int Bits>
inline Vec to_float(Codes codes) {
  if constexpr (Bits == 8) return _mm256_cvtepi32_ps(codes);
  return _mm256_cvtepi32_ps(_mm256_and_si256(codes, _mm256_set1_epi32((1 << Bits) - 1)));
}

template <int Bits>
inline Codes to_codes(Vec v) {
  return _mm256_cvtps_epi32(min(max(v, zero()), broadcast((1 << Bits) - 1)));
}

// The instructions that narrow work in halves of a register: the lower halves of all four vectors
// come before the upper ones.
template <int Bits>
inline void pack(const Codes (&codes)[4], uint8_t* block) {
  __m256i bytes = _mm256_packus_epi16(_mm256_packs_epi32(codes[0], codes[1]),
                                      _mm256_packs_epi32(codes[2], codes[3]));
  pack_bytes<Bits>(_mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7)),
                   block);
}

template <int Bits>
struct Lookup {
  Vec values;
};

template <int Bits, typename F>
inline Lookup<Bits> make_lookup(F&& f) {
  return {f(to_float<Bits>(_mm256_set_epi32(7, 6, 5, 4, 3, 2, 1, 0)))};
}

template <int Bits>
inline Vec lookup(Codes codes, const Lookup<Bits>& table) {
  return _mm256_permutevar8x32_ps(table.values, codes);
}

struct Table {
  Vec low, high;
};

template <typename F>
inline Table make_table(const float* levels, F&& f) {
  return {f(load(levels)), f(load(levels + 8))};
}

inline Vec table_lookup(Codes codes, const Table& table) {
  Vec low = _mm256_permutevar8x32_ps(table.low, codes);
  Vec high = _mm256_permutevar8x32_ps(table.high, codes);
  return _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28)));
}

template <int Bits>
inline Vec gathered(Codes codes, const float* levels) {
  return _mm256_i32gather_ps(levels, _mm256_and_si256(codes, _mm256_set1_epi32((1 << Bits) - 1)),
                             4);
}

inline Codes upper_nibble(Codes codes) { return _mm256_srli_epi32(codes, 4); }

}  // namespace
}  // namespace mto::avx2
