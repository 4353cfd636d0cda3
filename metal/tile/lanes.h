#pragma once

#include <metal_stdlib>

namespace mto {

constant constexpr int kLanes = 32;

// The sum over all lanes, in all lanes. A fixed tree: simd_sum leaves its order open.
template <typename T>
inline T sum_lanes(T value) {
  for (ushort step = kLanes / 2; step > 0; step /= 2) {
    value += metal::simd_shuffle_xor(value, step);
  }
  return value;
}

// simd_shuffle of 64 bits, of which the lowest `Bits` matter.
template <int Bits>
inline ulong shuffle_bits(ulong value, ushort lane) {
  if constexpr (Bits <= 32) {
    return metal::simd_shuffle(uint(value), lane);
  } else {
    return as_type<ulong>(metal::simd_shuffle(as_type<uint2>(value), lane));
  }
}

}  // namespace mto
