#pragma once

// ggml's blocks of 256 values: k-quants and ternary ones. C++ and Metal. See ggml.h.

#include "formats/bits.h"

namespace mto {
MTO_LOCAL_BEGIN

// Two-bit fields in bytes of 128 values each: 32 values in bits 0-1 of 32 bytes, 32 in bits 2-3, ..
template <typename Bytes>
inline uint32_t two_bits(Bytes bytes, int i) {
  return uint32_t(bytes[i / 128 * 32 + i % 32]) >> (i % 128 / 32 * 2) & 3;
}

// Scales [16], a nibble each for scale and minimum; codes [64]; d; dmin.
struct Q2_K {
  enum { kBits = 0, kBlock = 256, kBlockBytes = 84 };
  template <typename Bytes>
  static ScaleBias parameters(Bytes block, int i) {
    uint32_t both = block[i / 16];
    return {float16_at(block + 80) * float(both & 15),
            -(float16_at(block + 82) * float(both >> 4))};
  }
  template <typename Bytes>
  static float code(Bytes block, int i) {
    return float(two_bits(block + 16, i));
  }
};

// High bits [32], value i in bit i / 32 of byte i % 32; low bits [64]; sixteen scales of 6 bits in
// 12 bytes; d.
struct Q3_K {
  enum { kBits = 0, kBlock = 256, kBlockBytes = 110 };
  template <typename Bytes>
  static ScaleBias parameters(Bytes block, int i) {
    int j = i / 16;
    uint32_t low = uint32_t(block[96 + j % 8]) >> (j / 8 * 4) & 15;
    uint32_t high = uint32_t(block[104 + j % 4]) >> (j / 4 * 2) & 3;
    return scale_alone(float16_at(block + 108) * (float(low | high << 4) - 32.0f));
  }
  template <typename Bytes>
  static float code(Bytes block, int i) {
    uint32_t high = uint32_t(block[i % 32]) >> (i / 32) & 1;
    return float(two_bits(block + 32, i) | high << 2) - 4.0f;
  }
};

// Eight scales and eight minimums of 6 bits in 12 bytes, after d and dmin.
template <typename Bytes>
inline ScaleBias k_parameters(Bytes block, int i) {
  int j = i / 32, low = j % 4;
  Bytes packed = block + 4;
  uint32_t scale = packed[low], minimum = packed[low + 4], both = packed[low + 8];
  if (j < 4) {
    scale &= 63;
    minimum &= 63;
  } else {
    scale = (both & 15) | (scale >> 6 << 4);
    minimum = both >> 4 | (minimum >> 6 << 4);
  }
  return {float16_at(block) * float(scale), -(float16_at(block + 2) * float(minimum))};
}

// 32 values in the lower nibbles of 32 bytes, 32 in the upper ones.
template <typename Bytes>
inline uint32_t nibble_of_64(Bytes bytes, int i) {
  return uint32_t(bytes[i / 64 * 32 + i % 32]) >> (i % 64 / 32 * 4) & 15;
}

struct Q4_K {
  enum { kBits = 0, kBlock = 256, kBlockBytes = 144, kNibbles = 32, kNibblesAt = 16 };
  static float level(uint32_t nibble) { return float(nibble); }
  template <typename Bytes>
  static ScaleBias parameters(Bytes block, int i) {
    return k_parameters(block, i);
  }
  template <typename Bytes>
  static float code(Bytes block, int i) {
    return level(nibble_of_64(block + 16, i));
  }
};

// The fifth bit of value i is bit i / 32 of byte i % 32.
struct Q5_K {
  enum { kBits = 0, kBlock = 256, kBlockBytes = 176 };
  template <typename Bytes>
  static ScaleBias parameters(Bytes block, int i) {
    return k_parameters(block, i);
  }
  template <typename Bytes>
  static float code(Bytes block, int i) {
    uint32_t high = uint32_t(block[16 + i % 32]) >> (i / 32) & 1;
    return float(nibble_of_64(block + 48, i) | high << 4);
  }
};

// Low nibbles [128]: of 128 values the first 64 in the lower halves of 64 bytes; high bits [64];
// sixteen signed scales; d.
struct Q6_K {
  enum { kBits = 0, kBlock = 256, kBlockBytes = 210 };
  template <typename Bytes>
  static ScaleBias parameters(Bytes block, int i) {
    return scale_alone(float16_at(block + 208) * float(int8_t(block[192 + i / 16])));
  }
  template <typename Bytes>
  static float code(Bytes block, int i) {
    uint32_t low = uint32_t(block[i / 128 * 64 + i % 64]) >> (i % 128 / 64 * 4) & 15;
    return float(low | two_bits(block + 128, i) << 4) - 32.0f;
  }
};

// Five digits to the base of 3 a byte, as a fraction of 256: 32 bytes of 160 values, 16 bytes of
// 80, 4 bytes of 16; d.
struct Tq1_0 {
  enum { kBits = 0, kBlock = 256, kBlockBytes = 54 };
  template <typename Bytes>
  static ScaleBias parameters(Bytes block, int) {
    return scale_alone(float16_at(block + 52));
  }
  template <typename Bytes>
  static float code(Bytes block, int i) {
    int at = i % 32, digit = i / 32;
    if (i >= 240) {
      at = 48 + i % 4;
      digit = (i - 240) / 4;
    } else if (i >= 160) {
      at = 32 + i % 16;
      digit = (i - 160) / 16;
    }
    uint32_t fraction = block[at];
    for (int j = 0; j < digit; ++j) fraction = fraction * 3 & 0xff;
    return float(fraction * 3 >> 8) - 1.0f;
  }
};

struct Tq2_0 {
  enum { kBits = 0, kBlock = 256, kBlockBytes = 66 };
  template <typename Bytes>
  static ScaleBias parameters(Bytes block, int) {
    return scale_alone(float16_at(block + 64));
  }
  template <typename Bytes>
  static float code(Bytes block, int i) {
    return float(two_bits(block, i)) - 1.0f;
  }
};

MTO_LOCAL_END
}  // namespace mto
