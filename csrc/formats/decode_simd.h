#pragma once

// Decodes spans of 32 values of any format (see cpu/simd.h for the verbs).

#include <algorithm>
#include <cmath>

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

  MTO_INLINE ScaleBias of_group(int64_t index) const {
    int64_t at = base + index;
    float scale = scale_at(m.scale_type, m.scales, at);
    if (m.global_scale) scale *= global;
    return {scale, m.biases ? scale_at(m.bias_type, m.biases, at) : -0.0f};
  }
  ScaleBias operator()(int64_t col) const { return of_group(col / m.group_cols); }
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

// Value by value: a span that the row ends within, or that groups of any width share.
template <int Bits>
MTO_APART void decode_ragged(const PackedMatrix& m, const RowGroups& groups, const uint8_t* codes,
                             int64_t first, float* out, int64_t step) {
  for (int i = 0; i < kBlock; ++i) {
    float value = 0.0f;
    if (first + i < m.n_cols) {
      auto [scale, bias] = groups(first + i);
      int bit = i * Bits;
      uint32_t code = codes[bit / 8] >> (bit % 8) & ((1 << Bits) - 1);
      value = std::fma((*m.levels)[code], scale, bias);
    }
    out[i / kLanes * step + i % kLanes] = value;
  }
}

// Scales `first` .. `first` + n of a row as floats.
inline void load_scales(const RowGroups& groups, int64_t first, int64_t n, float* out) {
  const auto& m = groups.m;
  if (m.scale_type == ScaleType::kE8M0) {
    auto codes = static_cast<const uint8_t*>(m.scales) + groups.base + first;
    for (int64_t i = 0; i < n; ++i) out[i] = float_from_e8m0(codes[i]);
    return;
  }
  for (int64_t i = 0; i < n; ++i) out[i] = groups.of_group(first + i).scale;
}

// Groups of 16, or of whole blocks, without biases, low codes first: the loop that products spend
// their time in.
template <int Bits, bool Halves>
MTO_FLAT void decode_whole_groups(const PackedMatrix& m, const RowGroups& groups,
                                  const uint8_t* codes, int64_t first, int64_t n, float* out,
                                  int64_t step) {
  constexpr int kScales = 64;
  const float* levels = m.levels->data();
  int64_t per_scale = Halves ? 1 : m.group_cols / kBlock, until = per_scale;
  int64_t next = first / m.group_cols, in_group = Halves ? 0 : first % m.group_cols / kBlock;
  float scales[kScales];
  int64_t held = 0, at = 0;
  LevelGroup<Bits> low, high;
  until = in_group;  // blocks that the group has had
  for (int64_t i = 0; i < n; i += kBlock, codes += block_bytes(Bits), out += kVecsPerBlock * step) {
    if (i == 0 || Halves || until == per_scale) {
      if (at + (Halves ? 2 : 1) > held) {
        next += at;
        int64_t left = Halves ? (n - i) / 16 : (n - i + m.group_cols - 1) / m.group_cols;
        held = std::min<int64_t>(kScales, left);
        load_scales(groups, next, held, scales);
        at = 0;
      }
      low = LevelGroup<Bits>(levels, scale_alone(scales[at++]));
      if constexpr (Halves) high = LevelGroup<Bits>(levels, scale_alone(scales[at++]));
      if (i != 0) until = 0;
    }
    ++until;
    if (i % 128 == 0) __builtin_prefetch(codes + kAheadOfDecoding);
    unroll<kVecsPerBlock>([&](auto v) {
      const auto& group = Halves && v.value * kLanes >= kBlock / 2 ? high : low;
      store(out + v.value * step, group.values(unpack<Bits, v.value>(codes)));
    });
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
  // The next group, and the column where it starts: a division takes longer than decoding a block.
  int64_t next = first / m.group_cols, held = first;
  bool whole = first + n <= m.n_cols && !m.biases && !high_first;
  if (whole && m.group_cols % kBlock == 0) {
    return decode_whole_groups<Bits, false>(m, groups, codes, first, n, out, step);
  }
  if (whole && m.group_cols == kBlock / 2) {
    return decode_whole_groups<Bits, true>(m, groups, codes, first, n, out, step);
  }
  bool uneven = m.group_cols % kBlock != 0 && m.group_cols != kBlock / 2 && m.group_cols < m.n_cols;
  LevelGroup<Bits> group;
  for (int64_t col = first; col < first + n;
       col += kBlock, codes += block_bytes(Bits), out += kVecsPerBlock * step) {
    if (8 % Bits == 0 && (uneven || col + kBlock > m.n_cols)) {
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
        group = LevelGroup<Bits>(levels, groups.of_group(next));
        held = ++next * m.group_cols;
      }
      unroll<kVecsPerBlock>(
          [&](auto v) { store(out + v.value * step, group.values(unpack<Bits, v.value>(from))); });
      continue;
    }
    LevelGroup<Bits> low(levels, groups.of_group(next));
    LevelGroup<Bits> high(levels, groups.of_group(next + 1));
    next += 2;
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

// Formats whose blocks have nibbles of up to 16 levels, or signed bytes.
template <typename Format>
concept HasNibbles = requires { Format::kNibblesAt; };
template <typename Format>
concept HasSignedBytes = requires { Format::kSignedBytesAt; };

template <typename Format>
const float* nibble_levels() {
  static const Levels table = [] {
    Levels all{};
    for (int i = 0; i < kMaxLevels; ++i) all[i] = Format::level(i & 15);
    return all;
  }();
  return table.data();
}

// Values At .. At + 31 of a block.
template <typename Format, int At>
MTO_INLINE void decode_span(const uint8_t* block, const float* levels, float* out, int64_t step) {
  if constexpr (HasNibbles<Format>) {
    constexpr int kSpan = Format::kNibbles;
    LevelGroup<4> group(levels, Format::parameters(block, At));
    const uint8_t* bytes = block + Format::kNibblesAt + At / (2 * kSpan) * kSpan;
    unroll<kVecsPerBlock>([&](auto v) {
      constexpr int kAt = At % (2 * kSpan) + v.value * kLanes;
      Codes codes = unpack<8, 0>(bytes + kAt % kSpan);
      if constexpr (kAt >= kSpan) codes = upper_nibble(codes);
      store(out + v.value * step, group.values(codes));
    });
  } else if constexpr (HasSignedBytes<Format>) {
    auto [scale, bias] = Format::parameters(block, At);
    unroll<kVecsPerBlock>([&](auto v) {
      Vec code = to_float<8>(unpack<8, v.value>(block + Format::kSignedBytesAt));
      code = select(code, broadcast(128.0f), code, sub(code, broadcast(256.0f)));
      store(out + v.value * step, fma(code, broadcast(scale), broadcast(bias)));
    });
  } else {
    float values[kBlock];
    unroll<kBlock / 8>([&](auto run) {
      constexpr int kFirst = run.value * 8;
      auto [scale, bias] = Format::parameters(block, At + kFirst);
      // The product is exact.
      unroll<8>([&](auto i) {
        constexpr int kAt = kFirst + i.value;
        values[kAt] = Format::code(block, At + kAt) * scale + bias;
      });
    });
    unroll<kVecsPerBlock>(
        [&](auto v) { store(out + v.value * step, load(values + v.value * kLanes)); });
  }
}

template <typename Format>
MTO_FLAT void decode_blocks(const PackedMatrix& m, int64_t row, int64_t first, int64_t n,
                            float* out, int64_t step) {
  const float* levels = nullptr;
  if constexpr (HasNibbles<Format>) levels = nibble_levels<Format>();
  const uint8_t* block = m.w + row * m.row_bytes + first / Format::kBlock * Format::kBlockBytes;
  int span = static_cast<int>(first % Format::kBlock / kBlock);
  for (int64_t col = 0; col < n; block += Format::kBlockBytes, span = 0) {
    __builtin_prefetch(block + kAheadOfDecoding);
    unroll<Format::kBlock / kBlock>([&](auto s) {
      if (s.value < span || col >= n) return;
      decode_span<Format, s.value * kBlock>(block, levels, out, step);
      col += kBlock;
      out += kVecsPerBlock * step;
    });
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
