#pragma once

#include <metal_stdlib>

#include "tile/lanes.h"

// Rows of up to Columns values, shared out among the lanes of a simdgroup: a lane has runs of
// neighbours, one in each block of all lanes. Columns is 64, or a multiple of 128.

namespace mto {

template <int Columns>
struct LaneColumns {
  enum {
    kWidth = Columns < 128 ? Columns / kLanes : 4,  // of a run
    kBlock = kWidth * kLanes,
    kBlocks = Columns / kBlock,
    kCount = kWidth * kBlocks,  // of a lane
  };
  static_assert(Columns % kBlock == 0, "whole blocks");

  // The column of a lane's n-th value.
  static int column(int n, uint lane) {
    return n / kWidth * kBlock + int(lane) * kWidth + n % kWidth;
  }
};

// Rows as they are in memory, `stride` elements apart. Where `aligned`, runs may be loaded as
// vectors.
template <typename T, int Columns>
struct DenseRows {
  using Lanes = LaneColumns<Columns>;

  const device T* first;
  int64_t stride;
  int n_columns;
  bool aligned;

  // Columns behind the last are 0.
  void load(thread float* values, int row, uint lane) const thread {
    const device T* data = first + row * stride;
    for (int block = 0; block < Lanes::kBlocks; ++block) {
      const int at = block * Lanes::kBlock + int(lane) * Lanes::kWidth;
      thread float* run = values + block * Lanes::kWidth;
      if (aligned) {
        using Run = metal::vec<T, Lanes::kWidth>;
        Run loaded = Run(T(0.0f));
        if (at < n_columns) loaded = *(const device Run*)(data + at);
        for (int i = 0; i < Lanes::kWidth; ++i) run[i] = float(loaded[i]);
      } else {
        for (int i = 0; i < Lanes::kWidth; ++i) {
          run[i] = at + i < n_columns ? float(data[at + i]) : 0.0f;
        }
      }
    }
  }
};

// Rows of packed codes. A format says how many bits a code has and how many codes a group, loads
// what a group has beside its codes, and makes values of both. Words are loaded once, by whichever
// lane, and so is what a group has; lanes then exchange them.
template <typename Format, int Columns>
struct PackedRows {
  using Lanes = LaneColumns<Columns>;
  enum {
    kBits = Format::kBits,
    kGroup = Format::kGroupSize,
    kRunBits = kBits * Lanes::kWidth,
    kBlockGroups = Lanes::kBlock > kGroup ? Lanes::kBlock / kGroup : 1,
    kHeld = (Columns / kGroup + kLanes - 1) / kLanes,  // groups that a lane loads
  };
  static_assert(kRunBits <= 32, "a run is in two words at most");

  const device uint* words;
  int64_t stride;
  Format groups;
  int n_columns;

  // Columns behind the last are what the format makes of nothing: 0.
  void load(thread float* values, int row, uint lane) const thread {
    const device uint* data = words + row * stride;
    const int n_words = n_columns / 32 * kBits + n_columns % 32 * kBits / 32;
    float2 held[kHeld];
    for (int i = 0; i < kHeld; ++i) {
      const int group = i * kLanes + int(lane);
      held[i] = group * kGroup < n_columns ? groups.parameters(row, group) : float2(0.0f);
    }
    for (int block = 0; block < Lanes::kBlocks; ++block) {
      const int word = block * kRunBits + int(lane);
      const uint loaded = int(lane) < kRunBits && word < n_words ? data[word] : 0;
      const uint run = run_of(loaded, lane);
      const int group = (block * Lanes::kBlock + int(lane) * Lanes::kWidth) / kGroup;
      const float2 parameters =
          metal::simd_shuffle(held[block * kBlockGroups / kLanes], ushort(group % kLanes));
      for (int i = 0; i < Lanes::kWidth; ++i) {
        const uint code = run >> (i * kBits) & ((1u << kBits) - 1);
        values[block * Lanes::kWidth + i] = Format::value(code, parameters);
      }
    }
  }

  // The lane's run of codes out of a block's words, one a lane.
  static uint run_of(uint word, uint lane) {
    if constexpr (kRunBits == 32) return word;
    const int first = int(lane) * kRunBits, shift = first % 32;
    uint run = metal::simd_shuffle(word, ushort(first / 32)) >> shift;
    if constexpr (32 % kRunBits != 0) {
      const uint next = metal::simd_shuffle(word, ushort(metal::min(first / 32 + 1, kLanes - 1)));
      if (shift + kRunBits > 32) run |= next << (32 - shift);
    }
    return run;
  }
};

}  // namespace mto
