#pragma once

// Encodes the affine format by MLX's rule, in float32, one rounding a step.

#include <cmath>
#include <limits>

#include "cpu/simd.h"
#include "formats/affine.h"

namespace mto::MTO_ISA {
namespace {

// Below this the scale would make codes of rounding noise.
constexpr float kAffineMinScale = 1e-7f;

inline float first_zero(const float* values) {
  while (*values != 0.0f) ++values;
  return *values;
}

// NaN values never become an extreme.
template <int Bits>
inline void affine_extremes(const float* values, int n, float& low, float& high) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  Vec lows = broadcast(kInfinity), highs = broadcast(-kInfinity);
  for (int i = 0; i < n; i += kLanes) {
    Vec v = load(values + i);
    lows = min(v, lows);
    highs = max(v, highs);
  }
  low = lowest(lows);
  high = highest(highs);
  // The bias of 1 bit has the sign of the zero that MLX meets first.
  if (Bits == 1 && low == 0.0f) low = first_zero(values);
}

// The scale maps the value of largest magnitude, the edge, exactly to a code; it is negative where
// the edge is the maximum. 1 bit stores the two extremes themselves. Without branches: the loop
// over groups vectorises.
template <int Bits>
inline void affine_scales(const float* lows, const float* highs, int n, float* scales,
                          float* biases) {
  for (int i = 0; i < n; ++i) {
    float low = lows[i], high = highs[i];
    float scale = (high - low) / static_cast<float>((1 << Bits) - 1);
    scale = scale < kAffineMinScale ? kAffineMinScale : scale;
    if constexpr (Bits == 1) {
      scales[i] = scale;
      biases[i] = low;
    } else {
      bool negative_edge = std::fabs(low) > std::fabs(high);
      float edge = negative_edge ? low : high;
      scale = negative_edge ? scale : -scale;
      float edge_code = std::nearbyint(edge / scale), exact = edge / edge_code;
      scales[i] = edge_code == 0.0f ? scale : exact;
      biases[i] = edge_code == 0.0f ? 0.0f : edge;
    }
  }
}

// Codes from the scale before it is rounded to the type it is stored in. NaN becomes code 0.
template <int Bits>
inline void affine_encode(const float* values, int n, float scale, float bias, uint8_t* out) {
  Vec scales = broadcast(scale), biases = broadcast(bias);
  for (int i = 0; i < n; i += kBlock, out += block_bytes(Bits)) {
    Codes codes[kVecsPerBlock];
    unroll<kVecsPerBlock>([&](auto v) {
      Vec value = load(values + i + v.value * kLanes);
      codes[v.value] = to_codes<Bits>(div(sub(value, biases), scales));
    });
    pack<Bits>(codes, out);
  }
}

// A block of two groups of 16.
template <int Bits>
inline void affine_encode_halves(const float* values, const float* scales, const float* biases,
                                 uint8_t* out) {
  Codes codes[kVecsPerBlock];
  unroll<kVecsPerBlock>([&](auto v) {
    constexpr int kHalf = v.value * kLanes / 16;
    Vec value = sub(load(values + v.value * kLanes), broadcast(biases[kHalf]));
    codes[v.value] = to_codes<Bits>(div(value, broadcast(scales[kHalf])));
  });
  pack<Bits>(codes, out);
}

}  // namespace
}  // namespace mto::MTO_ISA
