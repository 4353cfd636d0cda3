#pragma once

// Encodes one group of the affine format by MLX's rule, in float32, one rounding a step. Compiled
// per instruction set: the loops vectorise.

#include <cmath>
#include <limits>

#include "cpu/simd.h"
#include "formats/affine.h"

namespace mto::MTO_ISA {
namespace {

struct AffineScale {
  float scale, bias;
};

// Below this the scale would make codes of rounding noise.
constexpr float kAffineMinScale = 1e-7f;

// The scale maps the value of largest magnitude, the edge, exactly to a code; it is negative where
// the edge is the maximum. NaN values never become an extreme. 1 bit stores the two extremes
// themselves.
inline AffineScale affine_scale(const float* values, int n, int bits) {
  float low = std::numeric_limits<float>::infinity(), high = -low;
  for (int i = 0; i < n; ++i) {
    high = high < values[i] ? values[i] : high;
    low = values[i] < low ? values[i] : low;
  }
  float scale = (high - low) / static_cast<float>((1 << bits) - 1);
  scale = scale < kAffineMinScale ? kAffineMinScale : scale;
  if (bits == 1) return {scale, low};
  bool negative_edge = std::fabs(low) > std::fabs(high);
  float edge = negative_edge ? low : high;
  scale = negative_edge ? scale : -scale;
  float edge_code = std::nearbyint(edge / scale);
  if (edge_code == 0.0f) return {scale, 0.0f};
  return {edge / edge_code, edge};
}

// Codes from the scale before it is rounded to the type it is stored in. NaN becomes code 0.
inline void affine_encode(const float* values, int n, int bits, AffineScale s, uint8_t* codes) {
  float n_max = static_cast<float>((1 << bits) - 1);
  for (int i = 0; i < n; ++i) {
    float code = std::nearbyint((values[i] - s.bias) / s.scale);
    code = code > 0.0f ? code : 0.0f;
    codes[i] = static_cast<uint8_t>(code < n_max ? code : n_max);
  }
}

// Eight codes fill `bits` bytes, least significant bit first.
inline void affine_pack(const uint8_t* codes, int n, int bits, uint8_t* out) {
  for (int i = 0; i < n; i += 8) {
    uint64_t word = 0;
    for (int j = 0; j < 8; ++j) word |= static_cast<uint64_t>(codes[i + j]) << (j * bits);
    for (int j = 0; j < bits; ++j) *out++ = static_cast<uint8_t>(word >> (8 * j));
  }
}

}  // namespace
}  // namespace mto::MTO_ISA
