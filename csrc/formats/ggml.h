#pragma once

// ggml's blocks of 32 values. C++ and Metal. Layouts: ggml-common.h of ggml; see bits.h for the
// form. `i` is a value's place in its block; parameters are the same for eight neighbours.

#include "formats/bits.h"

namespace mto {
MTO_LOCAL_BEGIN

// Nibbles in 16 bytes: values 0 .. 15 in the lower ones, 16 .. 31 in the upper ones.
template <typename Bytes>
inline uint32_t nibble_of_32(Bytes bytes, int i) {
  return uint32_t(bytes[i % 16]) >> (i / 16 * 4) & 15;
}

struct Q4_0 {
  enum { kBits = 0, kBlock = 32, kBlockBytes = 18, kNibbles = 16, kNibblesAt = 2 };
  static float level(uint32_t nibble) { return float(nibble) - 8.0f; }
  template <typename Bytes>
  static ScaleBias parameters(Bytes block, int) {
    return scale_alone(float16_at(block));
  }
  template <typename Bytes>
  static float code(Bytes block, int i) {
    return level(nibble_of_32(block + 2, i));
  }
};

struct Q4_1 {
  enum { kBits = 0, kBlock = 32, kBlockBytes = 20, kNibbles = 16, kNibblesAt = 4 };
  static float level(uint32_t nibble) { return float(nibble); }
  template <typename Bytes>
  static ScaleBias parameters(Bytes block, int) {
    return {float16_at(block), float16_at(block + 2)};
  }
  template <typename Bytes>
  static float code(Bytes block, int i) {
    return level(nibble_of_32(block + 4, i));
  }
};

MTO_TABLE int8_t kIq4Levels[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                   1,    13,   25,  38,  53,  69,  89,  113};

struct Iq4Nl {
  enum { kBits = 0, kBlock = 32, kBlockBytes = 18, kNibbles = 16, kNibblesAt = 2 };
  static float level(uint32_t nibble) { return float(kIq4Levels[nibble]); }
  template <typename Bytes>
  static ScaleBias parameters(Bytes block, int) {
    return scale_alone(float16_at(block));
  }
  template <typename Bytes>
  static float code(Bytes block, int i) {
    return level(nibble_of_32(block + 2, i));
  }
};

// The fifth bits of the 32 values follow the scale.
template <typename Bytes>
inline uint32_t fifth_bit(Bytes bytes, int i) {
  return (uint32_t(bytes[i / 8]) >> (i % 8) & 1) << 4;
}

struct Q5_0 {
  enum { kBits = 0, kBlock = 32, kBlockBytes = 22 };
  template <typename Bytes>
  static ScaleBias parameters(Bytes block, int) {
    return scale_alone(float16_at(block));
  }
  template <typename Bytes>
  static float code(Bytes block, int i) {
    return float(nibble_of_32(block + 6, i) | fifth_bit(block + 2, i)) - 16.0f;
  }
};

struct Q5_1 {
  enum { kBits = 0, kBlock = 32, kBlockBytes = 24 };
  template <typename Bytes>
  static ScaleBias parameters(Bytes block, int) {
    return {float16_at(block), float16_at(block + 2)};
  }
  template <typename Bytes>
  static float code(Bytes block, int i) {
    return float(nibble_of_32(block + 8, i) | fifth_bit(block + 4, i));
  }
};

struct Q8_0 {
  enum { kBits = 0, kBlock = 32, kBlockBytes = 34, kSignedBytesAt = 2 };
  template <typename Bytes>
  static ScaleBias parameters(Bytes block, int) {
    return scale_alone(float16_at(block));
  }
  template <typename Bytes>
  static float code(Bytes block, int i) {
    return float(int8_t(block[2 + i]));
  }
};

MTO_LOCAL_END
}  // namespace mto
