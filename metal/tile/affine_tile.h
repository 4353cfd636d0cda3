#pragma once

#include <metal_stdlib>

#include "formats/affine.h"
#include "tile/cooperative.h"
#include "tile/lanes.h"

namespace mto {

// Part of a packed matrix, which a simdgroup keeps in threadgroup memory as it is packed. So each
// word is loaded once, by whichever lane, however lanes and elements belong together.
template <int Bits, int GroupSize, int Rows, int Cols>
struct AffineTile {
  static_assert(Cols % 32 == 0, "rows are whole words");
  enum { kRowWords = Cols / 32 * Bits, kRowGroups = Cols > GroupSize ? Cols / GroupSize : 1 };
  uint words[Rows * kRowWords];
  float2 parameters[Rows * kRowGroups];  // scale and bias
};

// `words` is the first of the tile in a matrix with `stride` words a row. What lies beyond n_rows x
// n_cols becomes code 0.
template <int Bits, int GroupSize, int Rows, int Cols>
inline void load_words(threadgroup AffineTile<Bits, GroupSize, Rows, Cols>& tile,
                       const device uint* words, int stride, int n_rows, int n_cols, int lane) {
  using Tile = AffineTile<Bits, GroupSize, Rows, Cols>;
  for (int i = lane; i < Rows * Tile::kRowWords; i += kLanes) {
    int row = i / Tile::kRowWords, word = i % Tile::kRowWords;
    bool inside = row < n_rows && word < n_cols / 32 * Bits;
    tile.words[i] = inside ? words[row * stride + word] : 0;
  }
}

// The same for scales and biases, which become 0: a decoded value beyond the matrix is 0.
template <int Bits, int GroupSize, int Rows, int Cols, typename S, typename B>
inline void load_parameters(threadgroup AffineTile<Bits, GroupSize, Rows, Cols>& tile,
                            const device S* scales, const device B* biases, int stride, int n_rows,
                            int n_cols, int lane) {
  using Tile = AffineTile<Bits, GroupSize, Rows, Cols>;
  for (int i = lane; i < Rows * Tile::kRowGroups; i += kLanes) {
    int row = i / Tile::kRowGroups, group = i % Tile::kRowGroups;
    bool inside = row < n_rows && group * GroupSize < n_cols;
    int at = row * stride + group;
    tile.parameters[i] = inside ? float2(float(scales[at]), float(biases[at])) : float2(0.0f);
  }
}

// `Count` codes from code `first` of a row on, in the lowest bits; `first` is a multiple of Count.
template <int Bits, int Count>
inline uint codes_at(const threadgroup uint* row, int first) {
  constexpr int kBits = Bits * Count;
  int word = first * Bits / 32, shift = first * Bits % 32;
  uint codes = row[word] >> shift;
  if (32 % kBits != 0 && shift + kBits > 32) codes |= row[word + 1] << (32 - shift);
  return codes;
}

template <int Run, typename Operand, int Bits, int GroupSize, int Rows, int Cols>
inline void decode_runs(thread Operand& operand,
                        const threadgroup AffineTile<Bits, GroupSize, Rows, Cols>& tile) {
  using T = typename Operand::value_type;
  using Tile = AffineTile<Bits, GroupSize, Rows, Cols>;
  MTO_UNROLL for (ushort i = 0; i < operand.get_capacity(); i += Run) {
    if (!operand.is_valid_element(i)) continue;
    auto at = operand.get_multidimensional_index(i);
    uint codes = codes_at<Bits, Run>(tile.words + at[1] * Tile::kRowWords, at[0]);
    float2 parameters = tile.parameters[at[1] * Tile::kRowGroups + at[0] / GroupSize];
    for (ushort j = 0; j < Run; ++j) {
      operand[i + j] = T(metal::fma(affine_code<Bits>(codes, j), parameters[0], parameters[1]));
    }
  }
}

// Makes the elements [column, row] of an operand those of the tile: fma(code, scale, bias) in
// float32, rounded once where the operand is narrower. `run` is the operand's run_length.
template <typename Operand, typename Tile>
inline void decode(thread Operand& operand, const threadgroup Tile& tile, int run) {
  if (run == 4) {
    decode_runs<4>(operand, tile);
  } else if (run == 2) {
    decode_runs<2>(operand, tile);
  } else {
    decode_runs<1>(operand, tile);
  }
}

}  // namespace mto
