#pragma once

// Formats whose codes have a fixed number of bits, and their scales an array of their own: what a
// code stands for. C++ and Metal.

#include "formats/bits.h"

namespace mto {

// How a value finds its code.
enum Coding {
  kNoCoding,
  kUnsignedCoding,  // by the affine rule
  kSignedCoding,    // the nearest integer
  kFloatCoding,     // the nearest small float
  kLevelCoding,     // the nearest of the levels
  kTernaryCoding,
};

MTO_LOCAL_BEGIN

// Two's complement.
template <int Bits>
inline float signed_code(uint32_t code) {
  return float(int32_t(code << (32 - Bits)) >> (32 - Bits));
}

template <int Bits>
struct UnsignedCodes {
  enum { kBits = Bits, kCoding = kUnsignedCoding };
  static float level(uint32_t code) { return float(code); }
};

template <int Bits>
struct SignedCodes {
  enum { kBits = Bits, kCoding = kSignedCoding };
  static float level(uint32_t code) { return signed_code<Bits>(code); }
};

// OCP Microscaling Formats (MX) 1.0, section 5.3.
template <int Exponent, int Mantissa>
struct FloatCodes {
  enum { kBits = 1 + Exponent + Mantissa, kCoding = kFloatCoding };
  static float level(uint32_t code) { return small_float<Exponent, Mantissa>(code); }
};

using E2M1Codes = FloatCodes<2, 1>;
using E2M3Codes = FloatCodes<2, 3>;
using E3M2Codes = FloatCodes<3, 2>;

struct E4M3Codes {
  enum { kBits = 8, kCoding = kFloatCoding };
  static float level(uint32_t code) { return float_from_e4m3(code); }
};

struct E5M2Codes {
  enum { kBits = 8, kCoding = kFloatCoding };
  static float level(uint32_t code) { return float_from_e5m2(code); }
};

// MX's INT8: two's complement with 6 bits of fraction.
struct MxInt8Codes {
  enum { kBits = 8, kCoding = kSignedCoding };
  static float level(uint32_t code) { return signed_code<8>(code) * 0.015625f; }
};

struct TernaryCodes {
  enum { kBits = 2, kCoding = kTernaryCoding };
  static float level(uint32_t code) { return float(code) - 1.0f; }
};

// The quantiles of a normal distribution that QLoRA (Dettmers et al., 2023, appendix E) lists.
MTO_TABLE float kNf4Levels[16] = {-1.0f,
                                  -0.6961928009986877f,
                                  -0.5250730514526367f,
                                  -0.39491748809814453f,
                                  -0.28444138169288635f,
                                  -0.18477343022823334f,
                                  -0.09105003625154495f,
                                  0.0f,
                                  0.07958029955625534f,
                                  0.16093020141124725f,
                                  0.24611230194568634f,
                                  0.33791524171829224f,
                                  0.44070982933044434f,
                                  0.5626170039176941f,
                                  0.7229568362236023f,
                                  1.0f};

struct Nf4Codes {
  enum { kBits = 4, kCoding = kLevelCoding };
  static float level(uint32_t code) { return kNf4Levels[code]; }
};

// bitsandbytes' FP4 (csrc/kernels.cu, dDequantizeFP4Tree): a sign and eight magnitudes.
MTO_TABLE float kBnbFp4Levels[8] = {0.0f,        0.0052083333f, 0.66666667f, 1.0f,
                                    0.33333333f, 0.5f,          0.16666667f, 0.25f};

struct BnbFp4Codes {
  enum { kBits = 4, kCoding = kLevelCoding };
  static float level(uint32_t code) {
    float magnitude = kBnbFp4Levels[code & 7];
    return code & 8 ? -magnitude : magnitude;
  }
};

MTO_LOCAL_END
}  // namespace mto
