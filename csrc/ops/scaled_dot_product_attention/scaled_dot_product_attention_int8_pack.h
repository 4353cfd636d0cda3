#pragma once

// Quantized rows as the operands of products of tiles of bytes (cpu/int8_tiles.h), and floats as
// fixed-point numbers of 24 bits in three of them.

#include <array>

#include "cpu/int8_tiles.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_decode.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_scores.h"

namespace mto::MTO_ISA {
namespace {

constexpr int kParts = 3;  // bytes of a fixed-point number, lowest first
constexpr int kByteTile = 1024;
static_assert(kLanes == 16 && kStep == 2 * kLanes);

// How a chunk of codes of one row is held: as 64 bytes of `kPerByte` codes each. Four bits stay as
// they are packed, so that what moves codes moves two at a time.
template <int Bits>
struct CodeChunk {
  static constexpr int kPerByte = Bits == 4 ? 2 : 1;
  static constexpr int kCodes = 64 * kPerByte;

  // Codes from `first`, a multiple of kCodes, to `d`; zeros behind them.
  static MTO_INLINE __m512i load(const uint8_t* row, int64_t first, int64_t d) {
    int64_t n_bytes = std::min<int64_t>(kCodes, d - first) * Bits / 8;
    __mmask64 mask = n_bytes == 64 ? ~0ull : (1ull << n_bytes) - 1;
    __m512i bytes = _mm512_maskz_loadu_epi8(mask, row + first * Bits / 8);
    if constexpr (8 % Bits == 0 && Bits > 2) return bytes;
    // Eight codes fill `Bits` bytes: each run of them gets 8, and each code a byte of these.
    alignas(64) static constexpr auto kBytes = [] {
      std::array<uint8_t, 64> at{};
      for (int i = 0; i < 64; ++i) at[i] = static_cast<uint8_t>(i / 8 * Bits + i % 8 % Bits);
      return at;
    }();
    alignas(64) static constexpr auto kShifts = [] {
      std::array<uint8_t, 64> at{};
      for (int i = 0; i < 64; ++i) at[i] = static_cast<uint8_t>(i % 8 * Bits);
      return at;
    }();
    bytes = pick_bytes(bytes, _mm512_load_si512(kBytes.data()));
    return code<0>(pick_bits(bytes, _mm512_load_si512(kShifts.data())));
  }

  // The I-th code of each byte.
  template <int I>
  static MTO_INLINE __m512i code(__m512i bytes) {
    if constexpr (Bits == 8) return bytes;
    if constexpr (I > 0) bytes = _mm512_srli_epi32(bytes, I * Bits);
    return _mm512_and_si512(bytes, _mm512_set1_epi8((1 << Bits) - 1));
  }
};

// Where the quantized rows of one head start, and the bytes from one to the next.
struct CodeRows {
  const uint8_t* first;
  int64_t stride, d;

  CodeRows(const AttentionPacked& packed, int64_t b, int64_t h, int64_t row, int64_t d)
      : first(static_cast<const uint8_t*>(packed.codes.data) + packed.codes.offset(b, h, row)),
        stride(packed.codes.row),
        d(d) {}
  // Rows behind the n-th repeat it: something to load that nothing is made of.
  const uint8_t* row(int i, int n) const { return first + std::min(i, n - 1) * stride; }
};

// kStep rows, n of them codes, as right tiles whose depth is the rows' width: rows 0 .. 15, d / 4
// rows of tiles, then rows 16 .. 31. Four bits: of 8 codes those of even index come before those of
// odd index.
template <int Bits>
MTO_APART MTO_FLAT void pack_codes_across(const CodeRows& rows, int n, uint8_t* out) {
  using Chunk = CodeChunk<Bits>;
  for (int row = 0; row < kStep; row += kLanes) {
    for (int64_t first = 0; first < rows.d; first += Chunk::kCodes) {
      Vec square[kLanes];
      for (int i = 0; i < kLanes; ++i) {
        const uint8_t* codes = rows.row(row + i, n);
        __builtin_prefetch(codes + kRowsAhead * rows.stride + first * Bits / 8);
        square[i] = _mm512_castsi512_ps(Chunk::load(codes, first, rows.d));
      }
      transpose(square);
      int64_t n_words = std::min<int64_t>(Chunk::kCodes, rows.d - first) / (4 * Chunk::kPerByte);
      for (int64_t i = 0; i < n_words; ++i) {
        unroll<Chunk::kPerByte>([&](auto s) {
          _mm512_storeu_si512(out, Chunk::template code<s.value>(_mm512_castps_si512(square[i])));
          out += 64;
        });
      }
    }
  }
}

// kStep rows, n of them codes, as right tiles whose depth is the rows: a step fills 8 rows of each
// tile. Tiles hold 16 columns each; four bits: the even ones of 32 columns, then the odd ones.
template <int Bits>
MTO_APART MTO_FLAT void pack_codes_along(const CodeRows& rows, int n, uint8_t* out) {
  using Chunk = CodeChunk<Bits>;
  // So that interleaving within lanes leaves 16 bytes that follow each other in one vector.
  const __m512i lanes = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  for (int row = 0; row < kStep; row += 4, out += 64) {
    uint8_t* at = out;
    for (int64_t first = 0; first < rows.d; first += Chunk::kCodes) {
      __m512i four[4];
      unroll<4>([&](auto i) {
        const uint8_t* codes = rows.row(row + i.value, n);
        __builtin_prefetch(codes + kRowsAhead * rows.stride + first * Bits / 8);
        four[i.value] = _mm512_permutexvar_epi32(lanes, Chunk::load(codes, first, rows.d));
      });
      __m512i low01 = _mm512_unpacklo_epi8(four[0], four[1]);
      __m512i high01 = _mm512_unpackhi_epi8(four[0], four[1]);
      __m512i low23 = _mm512_unpacklo_epi8(four[2], four[3]);
      __m512i high23 = _mm512_unpackhi_epi8(four[2], four[3]);
      const __m512i words[4] = {
          _mm512_unpacklo_epi16(low01, low23), _mm512_unpackhi_epi16(low01, low23),
          _mm512_unpacklo_epi16(high01, high23), _mm512_unpackhi_epi16(high01, high23)};
      int64_t n_codes = std::min<int64_t>(Chunk::kCodes, rows.d - first);
      for (int u = 0; u * kLanes * Chunk::kPerByte < n_codes; ++u) {
        unroll<Chunk::kPerByte>([&](auto s) {
          _mm512_storeu_si512(at, Chunk::template code<s.value>(words[u]));
          at += kByteTile;
        });
      }
    }
  }
}

// Two vectors that hold the even and the odd ones of 32 columns, as the columns.
MTO_INLINE void interleave(Vec& even, Vec& odd) {
  const __m512i low = _mm512_set_epi32(23, 7, 22, 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
  const __m512i high =
      _mm512_set_epi32(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8);
  Vec first = _mm512_permutex2var_ps(even, low, odd);
  odd = _mm512_permutex2var_ps(even, high, odd);
  even = first;
}

// Scales or biases of kStep rows, n of them and zeros: group g's begin at out + g * kTile.
MTO_APART void take_scales(const AttentionOperand& scales, int64_t b, int64_t h, int64_t first,
                           int n, int64_t n_groups, float* rows, float* out) {
  int64_t at = scales.offset(b, h, first);
  prefetch_groups(scales, at, n, n_groups);
  if (scales.row == n_groups) {
    convert_to_float(scales.type, scales.data, at, n * n_groups, rows);
  } else {
    for (int i = 0; i < n; ++i) {
      convert_to_float(scales.type, scales.data, at + i * scales.row, n_groups,
                       rows + i * n_groups);
    }
  }
  std::fill(rows + n * n_groups, rows + kStep * n_groups, 0.0f);
  const __m512i iota = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
  __m512i index = _mm512_mullo_epi32(iota, _mm512_set1_epi32(static_cast<int>(n_groups)));
  for (int64_t g = 0; g < n_groups; ++g, out += kTile) {
    for (int row = 0; row < kStep; row += kLanes) {
      store(out + row, _mm512_i32gather_ps(index, rows + row * n_groups + g, 4));
    }
  }
}

// What makes whole numbers of 24 bits of floats, by the greatest magnitude among them: a power of
// two to multiply by, and the factor back. NaN where one of them is not finite.
struct FixedPoint {
  Vec up;
  float down;

  explicit FixedPoint(__m512i magnitude_bits) {
    int exponent = (_mm512_reduce_max_epi32(magnitude_bits) >> 23) - 127;
    // Parts are signed, which takes a bit and a little more.
    int shift = std::min(22 - exponent, 126) - 1;
    up = broadcast(std::ldexp(1.0f, shift));
    down = exponent == 128 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0f, -shift);
  }
  static __m512i magnitude(Vec v) {
    return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7fffffff));
  }
};

// Whole numbers as bytes: parts[i] of 16 numbers, together with the sign that they carry.
struct FixedParts {
  __m128i parts[kParts];

  explicit MTO_INLINE FixedParts(Vec numbers) {
    // Each part but the last carries into the next where it is negative.
    const __m512i carry = _mm512_set1_epi32(0x808080);
    __m512i bits = _mm512_add_epi32(_mm512_cvtps_epi32(numbers), carry);
    bits = _mm512_xor_si512(bits, carry);
    parts[0] = _mm512_cvtepi32_epi8(bits);
    parts[1] = _mm512_cvtepi32_epi8(_mm512_srli_epi32(bits, 8));
    parts[2] = _mm512_cvtepi32_epi8(_mm512_srli_epi32(bits, 16));
  }
};

// Splits biases into the code that stands for zero, or that nearest to it, and what is left: sums
// of codes less that one do not cancel with what is left, as both have the sign of the value.
MTO_APART void take_zeros(const float* scales, float* biases, int bits, uint8_t* zeros) {
  for (int i = 0; i < kStep; i += kLanes) {
    Vec scale = load(scales + i), bias = load(biases + i);
    Vec code = nearest(div(sub(zero(), bias), scale));
    code = min(max(code, zero()), broadcast(static_cast<float>((1 << bits) - 1)));
    store(biases + i, fma(scale, code, bias));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(zeros + i),
                     _mm512_cvtepi32_epi8(_mm512_cvtps_epi32(code)));
  }
}

// The number that parts of sums, less `subtracted`, stand for.
MTO_INLINE Vec whole_sum(const int32_t* sums, int64_t part_stride,
                         const int32_t (&subtracted)[kParts]) {
  auto part = [&](int i) {
    __m512i sum = _mm512_loadu_si512(sums + i * part_stride);
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, _mm512_set1_epi32(subtracted[i])));
  };
  Vec radix = broadcast(256);
  return fma(fma(part(2), radix, part(1)), radix, part(0));
}

}  // namespace
}  // namespace mto::MTO_ISA
