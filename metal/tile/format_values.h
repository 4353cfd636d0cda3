#pragma once

#include <metal_stdlib>

#include "formats/coded.h"
#include "formats/ggml.h"
#include "formats/ggml_k.h"
#include "formats/packed_params.h"
#include "tile/packed.h"

// Values of a packed matrix of any format. A format is one of the types Coded and Blocks below.

namespace mto {

// One packed matrix. What `scales` and `third` point to is the format's affair.
struct PackedView {
  const device uchar* w;
  const device uchar* scales;
  const device uchar* third;
  PackedParams params;
};

// How scales are stored.
template <typename T>
struct FloatScale {
  using Stored = T;
  static float decode(T scale) { return float(scale); }
};

struct E8M0Scale {
  using Stored = uchar;
  static float decode(uchar scale) { return float_from_e8m0(scale); }
};

struct E4M3Scale {
  using Stored = uchar;
  static float decode(uchar scale) { return float_from_e4m3(scale); }
};

// What the third array is.
struct NoThird {
  using Stored = uchar;
  static ScaleBias apply(float scale, const device uchar*, int64_t) { return scale_alone(scale); }
};

template <typename T>
struct Biases {
  using Stored = T;
  static ScaleBias apply(float scale, const device uchar* third, int64_t at) {
    return {scale, float(((const device T*)third)[at])};
  }
};

struct GlobalScale {
  using Stored = float;
  static ScaleBias apply(float scale, const device uchar* third, int64_t) {
    return scale_alone(scale * (*(const device float*)third / 2688.0f));
  }
};

// `Count` codes from code `first` of a row on, in the lowest bits; `first` is a multiple of Count.
template <int Bits, int Count, bool Words>
inline ulong codes_from(const device uchar* row, uint first) {
  constexpr int kBits = Bits * Count;
  if constexpr (Words && Count == kRun) return load_run<Bits>(row + first / kRun * Bits);
  if constexpr (kBits % 8 == 0) {
    ulong codes = 0;
    const device uchar* bytes = row + first / Count * (kBits / 8);
    for (int i = 0; i < kBits / 8; ++i) codes |= ulong(bytes[i]) << (8 * i);
    return codes;
  }
  const uint bit = first % 8 * Bits, shift = bit % 8;
  const device uchar* bytes = row + first / 8 * Bits + bit / 8;
  ulong codes = bytes[0];
  for (int i = 1; i <= (kBits + 6) / 8; ++i) {
    if (shift + kBits > uint(8 * i)) codes |= ulong(bytes[i]) << (8 * i);
  }
  return codes >> shift;
}

// Codes of a fixed number of bits, with scales in an array of their own.
template <typename Codes, typename Scale, typename Third, bool Words, bool HighFirst>
struct Coded {
  using StoredScale = typename Scale::Stored;
  using StoredThird = typename Third::Stored;
  enum { kWordBytes = Words ? 4 : 1 };

  static ScaleBias parameters(const thread PackedView& view, uint row, uint col) {
    const thread PackedParams& p = view.params;
    const int64_t at = row / p.group_rows * p.scales_stride + col / p.group_cols;
    return Third::apply(Scale::decode(((const device StoredScale*)view.scales)[at]), view.third,
                        at);
  }

  // Writes values `col` .. `col` + Count - 1 of a row; `col` is a multiple of Count.
  template <int Count>
  static void values(const thread PackedView& view, uint row, uint col, thread float* out) {
    constexpr int kBits = Codes::kBits;
    const ulong codes = codes_from<kBits, Count, Words>(view.w + row * view.params.row_bytes, col);
    ScaleBias group = parameters(view, row, col);
    const int group_cols = view.params.group_cols;
    const bool apart = int(col) % group_cols + Count > group_cols;
    for (int i = 0; i < Count; ++i) {
      if (apart && i > 0) group = parameters(view, row, col + i);
      const int at = HighFirst && Count > 1 ? i ^ 1 : i;
      uint code = uint(codes >> (at * kBits)) & ((1u << kBits) - 1);
      if constexpr (HighFirst && Count == 1) {
        code = (view.w[row * view.params.row_bytes + col / 2] >> (col % 2 ? 0 : 4)) & 15;
      }
      out[i] = metal::fma(Codes::level(code), group.scale, group.bias);
    }
  }
};

// Two-bit codes: byte [r, k] holds those of rows r, r + n / 4, .. of column k. One scale.
template <typename Codes, typename Scale>
struct Quarters {
  using StoredScale = typename Scale::Stored;
  using StoredThird = uchar;
  enum { kWordBytes = 1 };

  template <int Count>
  static void values(const thread PackedView& view, uint row, uint col, thread float* out) {
    const uint quarter = view.params.n_rows / 4;
    const device uchar* bytes = view.w + row % quarter * view.params.row_bytes + col;
    const float scale = Scale::decode(*(const device StoredScale*)view.scales);
    for (int i = 0; i < Count; ++i) {
      out[i] = Codes::level(bytes[i] >> (row / quarter * 2) & 3) * scale;
    }
  }
};

// Blocks with their scales inside.
template <typename Block>
struct Blocks {
  using StoredScale = uchar;
  using StoredThird = uchar;
  enum { kWordBytes = 1 };

  template <int Count>
  static void values(const thread PackedView& view, uint row, uint col, thread float* out) {
    const device uchar* block =
        view.w + row * view.params.row_bytes + int64_t(col / Block::kBlock) * Block::kBlockBytes;
    const int first = col % Block::kBlock;
    const ScaleBias group = Block::parameters(block, first);
    for (int i = 0; i < Count; ++i) {
      out[i] = metal::fma(Block::code(block, first + i), group.scale, group.bias);
    }
  }
};

// The first `n` of Count values, and zeros; `col` is a multiple of Count.
template <typename Format, int Count>
inline void values_within(const thread PackedView& view, uint row, uint col, int n,
                          thread float* out) {
  if (n >= Count) {
    Format::template values<Count>(view, row, col, out);
    return;
  }
  for (int i = 0; i < Count; ++i) {
    out[i] = 0.0f;
    if (i < n) Format::template values<1>(view, row, col + i, out + i);
  }
}

// The `index`-th matrix of a batch. `offsets` are in elements, of w, scales and the third array.
template <typename Format>
inline PackedView packed_view(const device uchar* w, const device uchar* scales,
                              const device uchar* third, PackedParams params,
                              const thread int64_t* offsets) {
  return {w + offsets[0] * Format::kWordBytes,
          scales + offsets[1] * int64_t(sizeof(typename Format::StoredScale)),
          third + offsets[2] * int64_t(sizeof(typename Format::StoredThird)), params};
}

}  // namespace mto
