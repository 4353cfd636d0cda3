#pragma once

#include "emulator/metal/vector.h"

// packed_float3 and its kin: N elements without padding, aligned like one element (specification 4,
// section 2.2.3). They convert to and from vec implicitly, and compute as vec.

EMU_VALUES_BEGIN

namespace metal {

template <class T, int N>
struct packed_vec : vec_swizzles<T, N, emu::PackedStorage<T, N>> {
  using Base = vec_swizzles<T, N, emu::PackedStorage<T, N>>;
  using Base::d;

  packed_vec() = default;
  constexpr packed_vec(const vec<T, N>& value) : Base{} {
    for (int i = 0; i < N; i++) d[i] = value.d[i];
  }
  template <class... A,
            enable_if_t<__is_constructible(vec<T, N>, A...) && sizeof...(A) != 0, int> = 0>
  constexpr explicit packed_vec(const A&... values) : packed_vec(vec<T, N>(values...)) {}

  constexpr operator vec<T, N>() const {
    vec<T, N> result(static_cast<T>(0));
    for (int i = 0; i < N; i++) result.d[i] = d[i];
    return result;
  }
  constexpr T& operator[](long i) { return d[i]; }
  constexpr const T& operator[](long i) const { return d[i]; }
  constexpr vec<T, N> operator-() const { return -vec<T, N>(*this); }
};

#define EMU_OPERATOR(op)                                                             \
  template <class T, int N>                                                          \
  constexpr auto operator op(const packed_vec<T, N>& a, const packed_vec<T, N>& b) { \
    return vec<T, N>(a) op vec<T, N>(b);                                             \
  }                                                                                  \
  template <class T, int N>                                                          \
  constexpr auto operator op(const packed_vec<T, N>& a, const vec<T, N>& b) {        \
    return vec<T, N>(a) op b;                                                        \
  }                                                                                  \
  template <class T, int N>                                                          \
  constexpr auto operator op(const vec<T, N>& a, const packed_vec<T, N>& b) {        \
    return a op vec<T, N>(b);                                                        \
  }                                                                                  \
  template <class T, int N, class S, enable_if_t<emu::splats<S, T>, int> = 0>        \
  constexpr auto operator op(const packed_vec<T, N>& a, S b) {                       \
    return vec<T, N>(a) op b;                                                        \
  }                                                                                  \
  template <class T, int N, class S, enable_if_t<emu::splats<S, T>, int> = 0>        \
  constexpr auto operator op(S a, const packed_vec<T, N>& b) {                       \
    return a op vec<T, N>(b);                                                        \
  }
#define EMU_ARITHMETIC(op)                                                  \
  EMU_OPERATOR(op)                                                          \
  template <class T, int N, class S>                                        \
  constexpr packed_vec<T, N>& operator op## = (packed_vec<T, N> & a, S b) { \
    return a = packed_vec<T, N>(a op b);                                    \
  }
EMU_ARITHMETIC(+)
EMU_ARITHMETIC(-)
EMU_ARITHMETIC(*)
EMU_ARITHMETIC(/)
EMU_ARITHMETIC(%)
EMU_ARITHMETIC(&)
EMU_ARITHMETIC(|)
EMU_ARITHMETIC(^)
EMU_ARITHMETIC(<<)
EMU_ARITHMETIC(>>)
EMU_OPERATOR(<)
EMU_OPERATOR(>)
EMU_OPERATOR(<=)
EMU_OPERATOR(>=)
EMU_OPERATOR(==)
EMU_OPERATOR(!=)
#undef EMU_ARITHMETIC
#undef EMU_OPERATOR

}  // namespace metal

EMU_VALUES_END
