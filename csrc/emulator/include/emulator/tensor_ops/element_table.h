#pragma once

#include "emulator/tensor_ops/formats.h"

// Which element types matmul2d takes together (MPPTensorOpsMatMul2d.h of the macOS 27 SDK). Types
// are compared exactly: char is not int8_t, and const elements match nothing.

EMU_SHIM_BEGIN

namespace emu {

template <class T, class... Choices>
constexpr bool is_one_of = (__is_same(T, Choices) || ...);

template <class T>
constexpr bool is_byte = is_one_of<T, int8_t, uint8_t>;

// Integers that mean the same sign: int8 goes with int4b and int2b, uint8 with uint4b and uint2b.
template <class L, class R>
constexpr bool same_sign() {
#if __METAL_VERSION__ >= 410
  return (is_one_of<L, int8_t> && is_one_of<R, int8_t, metal::int4b_format, metal::int2b_format>) ||
         (is_one_of<L, uint8_t> &&
          is_one_of<R, uint8_t, metal::uint4b_format, metal::uint2b_format>);
#else
  return (is_one_of<L, int8_t> && is_one_of<R, int8_t, metal::int4b_format>) ||
         (is_one_of<L, uint8_t> && is_one_of<R, uint8_t, metal::uint4b_format>);
#endif
}

template <class R>
constexpr bool is_packed_integer() {
#if __METAL_VERSION__ >= 410
  return is_one_of<R, metal::int4b_format, metal::uint4b_format, metal::int2b_format,
                   metal::uint2b_format>;
#else
  return is_one_of<R, metal::int4b_format, metal::uint4b_format>;
#endif
}

template <class R>
constexpr bool is_small_float() {
#if __METAL_VERSION__ >= 410
  return is_one_of<R, metal::metal_fp4_e2m1_format, metal::metal_fp8_e4m3_format,
                   metal::metal_fp8_e5m2_format>;
#else
  return false;
#endif
}

// Two operands of half, bfloat and float: float always; a narrow destination only from narrow
// operands, and only one that occurs among them.
template <class L, class R, class D>
constexpr bool floats_fit() {
  constexpr bool any_float = is_one_of<float, L, R>;
  return is_one_of<D, float> || (!any_float && is_one_of<D, L, R>);
}

template <class L, class R, class D>
constexpr bool elements_fit() {
  if constexpr (is_scalar_float<L> && is_scalar_float<R>) {
    return floats_fit<L, R, D>();
  } else if constexpr (same_sign<L, R>()) {
    return is_one_of<D, int32_t>;
  } else if constexpr (is_scalar_float<L> && is_byte<R>) {
    return is_one_of<D, L, float>;
  } else if constexpr (is_byte<L> && is_scalar_float<R>) {
    return is_one_of<D, R, float>;
  } else if constexpr (is_one_of<L, half, bfloat> && is_packed_integer<R>()) {
    return is_one_of<D, L, float>;
  } else if constexpr (is_one_of<L, half> && is_small_float<R>()) {
    return is_one_of<D, half, float>;
  } else if constexpr (is_small_float<L>() && is_one_of<L, R>) {
    return is_one_of<D, half, float>;
  } else {
    return false;
  }
}

}  // namespace emu

EMU_SHIM_END
