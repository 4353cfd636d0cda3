#pragma once

#include <metal_stdlib>

#include "tile/format_values.h"

namespace mto {

// Groups of codes with a scale, and a bias where Third is Biases<T>: rows of them, each some
// elements apart. Codes, Scale and Third are the types of tile/format_values.h.
template <typename Codes, int GroupSize, typename Scale, typename Third>
struct CodedGroups {
  enum { kBits = Codes::kBits, kGroupSize = GroupSize };
  using StoredScale = typename Scale::Stored;
  using StoredThird = typename Third::Stored;

  const device StoredScale* scales;
  const device StoredThird* third;
  int64_t scales_stride, third_stride;

  // Scale and bias.
  float2 parameters(int row, int group) const thread {
    const float scale = Scale::decode(scales[row * scales_stride + group]);
    const device uchar* of_row = (const device uchar*)(third + row * third_stride);
    const ScaleBias both = Third::apply(scale, of_row, group);
    return float2(both.scale, both.bias);
  }
  static float level(uint code) { return Codes::level(code); }
  static float value(uint code, float2 parameters) {
    return metal::fma(level(code), parameters[0], parameters[1]);
  }
};

}  // namespace mto
