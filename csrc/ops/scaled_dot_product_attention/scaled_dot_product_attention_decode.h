#pragma once

// Quantized rows as float32, in the layouts of the products. Each value is fma(code, scale, bias),
// rounded once.

#include "formats/affine_simd.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_pack.h"

namespace mto::MTO_ISA {
namespace {

// Rows whose codes are fetched before their turn, and scales of the next step.
constexpr int kRowsAhead = 2 * kStep;

// Scales, or biases, of the n rows behind those from `at` on.
inline void prefetch_groups(const AttentionOperand& operand, int64_t at, int n, int64_t n_groups) {
  auto prefetch = [&](int64_t index) {
    auto data = static_cast<const char*>(operand.data);
    __builtin_prefetch(data + index * static_cast<int64_t>(size_of(operand.type)));
  };
  if (operand.row == n_groups) {
    for (int64_t i = 0; i < n * n_groups; i += kLanes) prefetch(at + n * n_groups + i);
  } else {
    for (int i = 0; i < n; ++i) prefetch(at + (n + i) * operand.row);
  }
}

// Scales and biases of kStep rows; zeros behind the n-th row.
struct GroupScales {
  float *scales, *biases;  // [kStep, n_groups]
  int64_t n_groups;

  static constexpr int64_t n_floats(int64_t n_groups) { return 2 * n_groups * kStep; }

  GroupScales(const AttentionPacked& packed, int64_t b, int64_t h, int64_t first, int n, int64_t d,
              float* floats)
      : scales(floats),
        biases(floats + d / packed.group_size * kStep),
        n_groups(d / packed.group_size) {
    convert(packed.scales, b, h, first, n, scales);
    convert(packed.biases, b, h, first, n, biases);
  }

 private:
  void convert(const AttentionOperand& operand, int64_t b, int64_t h, int64_t first, int n,
               float* out) const {
    int64_t at = operand.offset(b, h, first);
    std::fill(out + n * n_groups, out + kStep * n_groups, 0.0f);
    prefetch_groups(operand, at, n, n_groups);
    if (operand.row == n_groups) {
      return convert_to_float(operand.type, operand.data, at, n * n_groups, out);
    }
    for (int i = 0; i < n; ++i, at += operand.row, out += n_groups) {
      convert_to_float(operand.type, operand.data, at, n_groups, out);
    }
  }
};

// Code I of 32, whose bits lie in `Bits` words one after the other.
template <int Bits, int I>
MTO_INLINE Vec code_of_words(const Codes* words) {
  constexpr int kWord = I * Bits / 32, kShift = I * Bits % 32;
  Codes code = shift_right<kShift>(words[kWord]);
  if constexpr (kShift + Bits > 32) code = join(code, shift_left<32 - kShift>(words[kWord + 1]));
  return to_float<Bits>(Bits == 8 ? low_bits<Bits>(code) : code);
}

// As pack_transposed<kWidth> of kStep rows: lanes are rows, whose codes are moved as whole words.
template <int Bits>
MTO_APART MTO_FLAT void decode_transposed(const AttentionPacked& packed, int64_t b, int64_t h,
                                          int64_t first, int n, int64_t d,
                                          const GroupScales& groups, float* out) {
  constexpr int kBlocks = std::max(1, kLanes / Bits);  // of 32 codes
  constexpr int kSquares = (kBlocks * Bits + kLanes - 1) / kLanes;
  auto data = static_cast<const uint8_t*>(packed.codes.data) + packed.codes.offset(b, h, first);
  for (int row = 0; row < kStep; row += kLanes) {
    float* panel = out + row / kWidth * kWidth * d + row % kWidth;
    for (int64_t column = 0; column < d; column += kBlocks * kBlock) {
      int64_t n_blocks = std::min<int64_t>(kBlocks, (d - column) / kBlock);
      Codes words[kSquares * kLanes];
      for (int s = 0; s < kSquares; ++s) {
        Vec square[kLanes];
        for (int i = 0; i < kLanes; ++i) {
          // Rows behind the last one repeat it: their scales are zeros.
          const uint8_t* codes = data + std::min(row + i, n - 1) * packed.codes.row;
          __builtin_prefetch(codes + kRowsAhead * packed.codes.row +
                             affine_row_bytes(column, Bits));
          square[i] = load_part(FloatType::kFloat32, codes + affine_row_bytes(column, Bits),
                                s * kLanes, n_blocks * Bits - s * kLanes);
        }
        transpose(square);
        for (int i = 0; i < kLanes; ++i) words[s * kLanes + i] = as_codes(square[i]);
      }
      for (int64_t block = 0; block < n_blocks; ++block) {
        int64_t at = column + block * kBlock;
        int64_t group = row * groups.n_groups + at / packed.group_size;
        auto n_groups = static_cast<int>(groups.n_groups);
        Vec scale = gather(groups.scales + group, n_groups);
        Vec bias = gather(groups.biases + group, n_groups);
        unroll<kBlock>([&](auto i) {
          Vec code = code_of_words<Bits, i.value>(words + block * Bits);
          store(panel + (at + i.value) * kWidth, fma(code, scale, bias));
        });
      }
    }
  }
}

// As pack_rows of n rows.
template <int Bits>
MTO_APART MTO_FLAT void decode_panels(const AttentionPacked& packed, int64_t b, int64_t h,
                                      int64_t first, int n, int64_t d, const GroupScales& groups,
                                      float* out, int64_t panel_stride) {
  auto codes = static_cast<const uint8_t*>(packed.codes.data) + packed.codes.offset(b, h, first);
  for (int row = 0; row < n; ++row, codes += packed.codes.row) {
    for (int64_t column = 0; column < d; column += packed.group_size) {
      int64_t at = row * groups.n_groups + column / packed.group_size;
      auto group = AffineGroup<Bits>::make(groups.scales[at], groups.biases[at]);
      for (int64_t c = column; c < column + packed.group_size; c += kBlock) {
        const uint8_t* block = codes + affine_row_bytes(c, Bits);
        __builtin_prefetch(block + kRowsAhead * packed.codes.row);
        unroll<kVecsPerBlock>([&](auto v) {
          int64_t lane = c + v.value * kLanes;
          store(out + lane / kWidth * panel_stride + row * kWidth + lane % kWidth,
                affine_decode<Bits, v.value>(block, group));
        });
      }
    }
  }
}

// Of kStep rows that a mode's decoder writes.
constexpr int64_t decoded_floats(int64_t d) { return kStep * round_up(d, kBlock); }

// n rows of a mode that has a decoder, one after the other.
inline RowSource decode_rows(const AttentionPacked& packed, int64_t b, int64_t h, int64_t first,
                             int n, int64_t d, float* out) {
  auto matrix = *packed.matrix;
  matrix.w = static_cast<const uint8_t*>(packed.codes.data) + packed.codes.offset(b, h);
  matrix.row_bytes = packed.codes.row;
  bool bytes = matrix.scale_type == ScaleType::kE8M0 || matrix.scale_type == ScaleType::kE4M3;
  auto size = static_cast<int64_t>(bytes ? 1 : size_of(packed.scales.type));
  matrix.scales = static_cast<const char*>(packed.scales.data) + packed.scales.offset(b, h) * size;
  matrix.scales_stride = packed.scales.row;
  int64_t stride = round_up(d, kBlock);
  for (int i = 0; i < n; ++i) {
    packed.decode(matrix, first + i, 0, stride, out + i * stride, kLanes);
  }
  return {FloatType::kFloat32, out, 0, stride, d};
}

}  // namespace
}  // namespace mto::MTO_ISA
