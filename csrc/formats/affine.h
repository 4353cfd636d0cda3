#pragma once

// The affine block format: value = scale * code + bias, one scale and bias a group, codes of `bits`
// bits in one stream a row, least significant bit first. C++ and Metal.

#ifndef __METAL_VERSION__
#include <cmath>
#include <cstdint>
#endif

namespace mto {

constexpr int64_t affine_row_bytes(int64_t n_values, int bits) { return n_values * bits / 8; }

// The shortest run of codes that starts and ends at a byte, whatever their bits.
enum { kAffineRun = 8 };

// The i-th code of a run, which fills `Bits` bytes.
template <int Bits>
inline float affine_code(uint64_t run, int i) {
  return static_cast<float>(static_cast<uint32_t>(run >> (i * Bits)) & ((1u << Bits) - 1));
}

#ifndef __METAL_VERSION__

constexpr int kAffineBits[] = {1, 2, 3, 4, 5, 6, 8};
constexpr int kAffineGroupSizes[] = {32, 64, 128};
constexpr int kAffineDefaultBits = 4;
constexpr int kAffineDefaultGroupSize = 64;

#endif

}  // namespace mto
