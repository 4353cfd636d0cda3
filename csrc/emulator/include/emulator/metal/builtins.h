#pragma once

#include "emulator/metal/integer.h"
#include "emulator/metal/relational.h"
#include "emulator/metal/simdgroup.h"

// Names with __metal_ that Apple's compiler knows and that MLX's kernels call directly: the math
// functions of bf16_math.h (whose last argument selects fast math) and the position of the thread.

EMU_VALUES_BEGIN

#define EMU_BUILTIN_1(name, expression) \
  inline float __metal_##name(float x, int) { return metal::name(x); }
#define EMU_BUILTIN_2(name, expression) \
  inline float __metal_##name(float x, float y, int) { return metal::name(x, y); }
#define EMU_BUILTIN_3(name, expression) \
  inline float __metal_##name(float x, float y, float z, int) { return metal::name(x, y, z); }
EMU_MATH_1(EMU_BUILTIN_1)
EMU_MATH_2(EMU_BUILTIN_2)
EMU_MATH_3(EMU_BUILTIN_3)
#undef EMU_BUILTIN_1
#undef EMU_BUILTIN_2
#undef EMU_BUILTIN_3

inline float __metal_fma(float x, float y, float z) { return metal::fma(x, y, z); }
inline float __metal_nextafter(float x, float y) { return metal::nextafter(x, y); }
inline float __metal_frexp(float x, int* exponent) { return metal::frexp(x, *exponent); }
inline float __metal_ldexp(float x, int exponent, int) { return metal::ldexp(x, exponent); }
inline int __metal_ilogb(float x) { return metal::ilogb(x); }
inline float __metal_modf(float x, float* whole) { return metal::modf(x, *whole); }
inline float __metal_sincos(float x, float& cosine, int) { return metal::sincos(x, cosine); }

template <class T>
inline T __metal_get_thread_index_in_simdgroup(T) {
  return static_cast<T>(emu::cur_lane()->lane);
}
template <class T>
inline T __metal_get_simdgroup_index_in_threadgroup(T) {
  return static_cast<T>(emu::cur_lane()->simdgroup);
}
template <class T>
constexpr T __metal_get_simdgroup_size(T) {
  return static_cast<T>(emu::kLanes);
}

EMU_VALUES_END
