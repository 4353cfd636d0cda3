#pragma once

#include <metal_stdlib>

namespace mto {

// Groups of the affine format, for PackedRows: rows of scales and biases, each some elements apart.
template <int Bits, int GroupSize, typename S, typename B>
struct AffineGroups {
  enum { kBits = Bits, kGroupSize = GroupSize };
  using Scale = S;
  using Bias = B;

  const device S* scales;
  const device B* biases;
  int64_t scales_stride, biases_stride;

  float2 parameters(int row, int group) const thread {
    return float2(float(scales[row * scales_stride + group]),
                  float(biases[row * biases_stride + group]));
  }
  static float value(uint code, float2 parameters) {
    return metal::fma(float(code), parameters[0], parameters[1]);
  }
};

}  // namespace mto
