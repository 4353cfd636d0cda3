#pragma once

// The affine block format: value = scale * code + bias, one scale and bias a group, codes of `bits`
// bits in one stream a row, least significant bit first.

#include <cstdint>

namespace mto {

constexpr int kAffineBits[] = {1, 2, 3, 4, 5, 6, 8};
constexpr int kAffineGroupSizes[] = {32, 64, 128};
constexpr int kAffineDefaultBits = 4;
constexpr int kAffineDefaultGroupSize = 64;

constexpr int64_t affine_row_bytes(int64_t n_values, int bits) { return n_values * bits / 8; }

}  // namespace mto
