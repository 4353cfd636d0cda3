#pragma once

// Decodes spans of 32 values of any format (see cpu/simd.h for the verbs).

#include <algorithm>

#include "cpu/simd.h"
#include "formats/packed_matrix.h"

namespace mto::MTO_ISA {
namespace {

// A memory access takes as long as decoding a kilobyte or two.
constexpr int64_t kAheadOfDecoding = 4096;

inline float scale_at(ScaleType type, const void* scales, int64_t index) {
  switch (type) {
    case ScaleType::kE8M0:
      return float_from_e8m0(static_cast<const uint8_t*>(scales)[index]);
    case ScaleType::kE4M3:
      return float_from_e4m3(static_cast<const uint8_t*>(scales)[index]);
    default:
      return load_one(static_cast<FloatType>(type), scales, index);
  }
}

// The parameters of the groups of one row.
struct RowGroups {
  const PackedMatrix& m;
  int64_t base;
  float global;

  RowGroups(const PackedMatrix& matrix, int64_t row)
      : m(matrix),
        base(row / matrix.group_rows * matrix.scales_stride),
        global(matrix.global_scale ? *matrix.global_scale / 2688.0f : 1.0f) {}

  ScaleBias operator()(int64_t col) const {
    int64_t at = base + col / m.group_cols;
    return {scale_at(m.scale_type, m.scales, at) * global,
            m.biases ? scale_at(m.bias_type, m.biases, at) : -0.0f};
  }
};

// A group whose codes stand for what a table says, ready to decode: up to 4 bits are looked up in
// registers.
template <int Bits>
struct LevelGroup {
  static constexpr bool kTabled = Bits <= 4;
  Vec scale, bias;
  const float* levels;
  Table table;

  LevelGroup() = default;
  MTO_INLINE LevelGroup(const float* all_levels, ScaleBias group)
      : scale(broadcast(group.scale)), bias(broadcast(group.bias)), levels(all_levels) {
    if constexpr (kTabled) {
      table = make_table(levels, [&](Vec level) { return fma(level, scale, bias); });
    }
  }

  MTO_INLINE Vec values(Codes codes) const {
    if constexpr (kTabled) {
      return table_lookup(codes, table);
    } else {
      return fma(gathered<Bits>(codes, levels), scale, bias);
    }
  }
};

// A span of a row that ends within it.
template <int Bits>
MTO_APART void decode_ragged(const PackedMatrix& m, const RowGroups& groups, const uint8_t* codes,
                             int64_t first, float* out, int64_t step) {
  for (int i = 0; i < kBlock; ++i) {
    float value = 0.0f;
    if (first + i < m.n_cols) {
      float scale = groups(first + i).scale;
      int bit = i * Bits;
      uint32_t code = codes[bit / 8] >> (bit % 8) & ((1 << Bits) - 1);
      value = (*m.levels)[code] * scale;
    }
    out[i / kLanes * step + i % kLanes] = value;
  }
}

template <int Bits>
void decode_codes(const PackedMatrix& m, int64_t row, int64_t first, int64_t n, float* out,
                  int64_t step) {
  constexpr int kSwapped = Bits == 4 ? block_bytes(4) : 1;
  RowGroups groups(m, row);
  const uint8_t* codes = m.w + row * m.row_bytes + first * Bits / 8;
  const float* levels = m.levels->data();
  bool high_first = m.layout == Layout::kHighFirst;
  int64_t held = -1;  // the column where the next group starts
  LevelGroup<Bits> group;
  for (int64_t col = first; col < first + n;
       col += kBlock, codes += block_bytes(Bits), out += kVecsPerBlock * step) {
    if (8 % Bits == 0 && col + kBlock > m.n_cols) {
      decode_ragged<Bits>(m, groups, codes, col, out, step);
      continue;
    }
    if (col % 128 == 0) __builtin_prefetch(codes + kAheadOfDecoding);
    const uint8_t* from = codes;
    uint8_t swapped[kSwapped];
    if (Bits == 4 && high_first) {
      for (int i = 0; i < kSwapped; ++i)
        swapped[i] = static_cast<uint8_t>(from[i] << 4 | from[i] >> 4);
      from = swapped;
    }
    if (m.group_cols >= kBlock) {
      if (col >= held) {
        group = LevelGroup<Bits>(levels, groups(col));
        held = (col / m.group_cols + 1) * m.group_cols;
      }
      unroll<kVecsPerBlock>(
          [&](auto v) { store(out + v.value * step, group.values(unpack<Bits, v.value>(from))); });
      continue;
    }
    LevelGroup<Bits> low(levels, groups(col));
    LevelGroup<Bits> high(levels, groups(col + kBlock / 2));
    unroll<kVecsPerBlock>([&](auto v) {
      const auto& half = v.value * kLanes < kBlock / 2 ? low : high;
      store(out + v.value * step, half.values(unpack<Bits, v.value>(from)));
    });
  }
}

// bitnet: the two bits of a row are those of its quarter.
inline void decode_quarters(const PackedMatrix& m, int64_t row, int64_t first, int64_t n,
                            float* out, int64_t step) {
  int64_t quarter = m.n_rows / 4;
  const uint8_t* codes = m.w + row % quarter * m.row_bytes;
  int shift = static_cast<int>(row / quarter * 2);
  float scale = RowGroups(m, row)(0).scale;
  for (int64_t i = 0; i < n; ++i) {
    int64_t col = first + i;
    float value = col < m.n_cols ? (*m.levels)[codes[col] >> shift & 3] * scale : 0.0f;
    out[i / kLanes * step + i % kLanes] = value;
  }
}

// Formats whose blocks have nibbles of up to 16 levels.
template <typename Format>
concept HasNibbles = requires { Format::kNibblesAt; };

template <typename Format>
MTO_INLINE void decode_span(const uint8_t* block, int at, const float* levels, float* out,
                            int64_t step) {
  if constexpr (HasNibbles<Format>) {
    constexpr int kSpan = Format::kNibbles;
    LevelGroup<4> group(levels, Format::parameters(block, at));
    const uint8_t* bytes = block + Format::kNibblesAt + at / (2 * kSpan) * kSpan;
    bool upper = at % (2 * kSpan) >= kSpan;
    unroll<kVecsPerBlock>([&](auto v) {
      constexpr int kAt = v.value * kLanes;
      Codes codes = unpack<8, 0>(bytes + kAt % kSpan);
      if (upper || kAt >= kSpan) codes = upper_nibble(codes);
      store(out + v.value * step, group.values(codes));
    });
  } else {
    for (int i = 0; i < kBlock; i += 8) {
      auto [scale, bias] = Format::parameters(block, at + i);
      for (int j = i; j < i + 8; ++j) {
        float value = Format::code(block, at + j) * scale + bias;  // the product is exact
        out[j / kLanes * step + j % kLanes] = value;
      }
    }
  }
}

template <typename Format>
void decode_blocks(const PackedMatrix& m, int64_t row, int64_t first, int64_t n, float* out,
                   int64_t step) {
  const uint8_t* blocks = m.w + row * m.row_bytes;
  const float* levels = nullptr;
  if constexpr (HasNibbles<Format>) {
    static const Levels table = [] {
      Levels all{};
      for (int i = 0; i < kMaxLevels; ++i) all[i] = Format::level(i & 15);
      return all;
    }();
    levels = table.data();
  }
  for (int64_t col = first; col < first + n; col += kBlock, out += kVecsPerBlock * step) {
    const uint8_t* block = blocks + col / Format::kBlock * Format::kBlockBytes;
    if (col % 128 == 0) __builtin_prefetch(block + kAheadOfDecoding);
    decode_span<Format>(block, static_cast<int>(col % Format::kBlock), levels, out, step);
  }
}

// A user's format.
inline void decode_called(const PackedMatrix& m, int64_t row, int64_t first, int64_t n, float* out,
                          int64_t step) {
  float values[kMaxLevels];
  int64_t held = -1;
  for (int64_t col = first; col < first + n; col += kBlock, out += kVecsPerBlock * step) {
    int64_t at = col / m.block;
    if (at != held) m.decode_block(m.w + row * m.row_bytes + at * m.block_bytes, values);
    held = at;
    unroll<kVecsPerBlock>([&](auto v) {
      store(out + v.value * step, load(values + col % m.block + v.value * kLanes));
    });
  }
}

}  // namespace
}  // namespace mto::MTO_ISA
