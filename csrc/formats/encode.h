#pragma once

// How values find their scales and codes, but for the affine format. Every step is one operation in
// float32; the formats that MLX has round it to the type of w, which makes them MLX's bit for bit
// (0.32.4, determined by experiment).

#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/simd.h"
#include "formats/packed_matrix.h"

namespace mto::MTO_ISA {
namespace {

// A float value rounded to a type.
inline float rounded_to(FloatType type, float value) {
  if (type == FloatType::kFloat16) return float_from_f16(f16_from_float(value));
  return type == FloatType::kBFloat16 ? float_from_bf16(bf16_from_float(value)) : value;
}

struct Encoder {
  const float* levels;
  Coding coding;
  int bits;
  bool first_of_equals;  // MLX's rule for 4-bit floats: the first level at the least distance
  FloatType step_type;   // that distances are rounded to
  int n_magnitudes;      // finite ones, of a signed format
  float largest;

  Encoder(const float* all_levels, Coding the_coding, int n_bits, bool of_mlx, FloatType w_type)
      : levels(all_levels),
        coding(the_coding),
        bits(n_bits),
        first_of_equals(of_mlx && n_bits == 4),
        step_type(of_mlx ? w_type : FloatType::kFloat32),
        n_magnitudes(1) {
    int half = 1 << (bits - 1);
    while (n_magnitudes < half && std::isfinite(levels[n_magnitudes])) ++n_magnitudes;
    largest = coding == kLevelCoding ? 1.0f : levels[n_magnitudes - 1];
  }

  uint32_t code(float step) const {
    if (first_of_equals) return first_nearest(step);
    if (coding == kFloatCoding) return nearest_float(step);
    if (coding == kSignedCoding) return nearest_integer(step);
    if (coding == kLevelCoding) return nearest_level(step);
    return std::isnan(step)
               ? 1
               : static_cast<uint32_t>(std::nearbyint(std::clamp(step, -1.0f, 1.0f)) + 1);
  }

 private:
  // A step that is infinite or NaN has code 0.
  uint32_t first_nearest(float step) const {
    uint32_t best = 0;
    float least = std::numeric_limits<float>::infinity();
    for (uint32_t i = 0; i < 16; ++i) {
      float distance = std::fabs(rounded_to(step_type, step - levels[i]));
      if (distance < least) {
        least = distance;
        best = i;
      }
    }
    return best;
  }

  // Of two the even code; the sign of a zero is kept.
  uint32_t nearest_float(float step) const {
    uint32_t sign = std::signbit(step) ? 1u << (bits - 1) : 0u;
    if (std::isnan(step)) return sign | ((1u << (bits - 1)) - 1);
    float magnitude = std::min(std::fabs(step), largest);
    int above =
        static_cast<int>(std::lower_bound(levels, levels + n_magnitudes, magnitude) - levels);
    above = std::clamp(above, 1, n_magnitudes - 1);
    double to_above = double{levels[above]} - magnitude,
           to_below = magnitude - double{levels[above - 1]};
    bool nearer = above % 2 == 0 ? to_above <= to_below : to_above < to_below;
    return sign | static_cast<uint32_t>(above - 1 + nearer);
  }

  uint32_t nearest_integer(float step) const {
    if (std::isnan(step)) return 0;
    float unit = levels[1];
    auto whole = static_cast<int32_t>(std::nearbyint(std::clamp(step, -largest, largest) / unit));
    return static_cast<uint32_t>(whole) & ((1u << bits) - 1);
  }

  // By the midpoints of neighbouring levels, of two the lower level; of equal levels the first
  // code.
  uint32_t nearest_level(float step) const {
    if (std::isnan(step)) step = 0.0f;
    int best = -1, next = -1;
    for (int i = 0; i < 1 << bits; ++i) {
      if (best < 0 || levels[i] < levels[best]) best = i;
    }
    while (true) {
      next = -1;
      for (int i = 0; i < 1 << bits; ++i) {
        if (levels[i] > levels[best] && (next < 0 || levels[i] < levels[next])) next = i;
      }
      if (next < 0 || !((levels[best] + levels[next]) / 2.0f < step))
        return static_cast<uint32_t>(best);
      best = next;
    }
  }
};

// The smallest power of two that is at least `wanted`; 0 has 1.
inline uint8_t e8m0_at_least(float wanted) {
  if (!std::isfinite(wanted)) return 0xff;
  if (wanted == 0.0f) return 127;
  int exponent;
  if (std::frexp(wanted, &exponent) == 0.5f) --exponent;
  return static_cast<uint8_t>(std::clamp(exponent + 127, 0, 254));
}

}  // namespace
}  // namespace mto::MTO_ISA
