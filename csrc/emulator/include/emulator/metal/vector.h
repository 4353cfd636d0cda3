#pragma once

#include "emulator/metal/floats.h"

typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

EMU_VALUES_BEGIN

#include "emulator/metal/swizzle.h"

// vec<T, N>: a class template, so that helpers deduce T and N from it, with the constructors and
// operators of Metal's vectors (specification 4, sections 2.2 and 3). Its functions are
// instrumented by the trace build like the kernel's own code: they run on vectors in device memory
// too.

namespace emu {

template <class T>
constexpr int width_of = 1;
template <class T, int N>
constexpr int width_of<metal::vec<T, N>> = N;
template <class T, int N>
constexpr int width_of<metal::packed_vec<T, N>> = N;

// A scalar operand takes the element type of the vector it meets: an integer meets any vector, a
// floating scalar only floating vectors (clang's rule for vector extensions, which Metal is built
// on).
template <class S, class T>
constexpr bool splats = is_scalar_number<S> && (is_scalar_float<T> || __is_integral(S));

}  // namespace emu

namespace metal {

template <class T, int N>
struct vec : vec_swizzles<T, N, emu::VectorStorage<T, N>> {
  static_assert(N >= 2, "a vector has two elements or more");
  using Base = vec_swizzles<T, N, emu::VectorStorage<T, N>>;
  using Base::d;

  vec() = default;
  template <class S, enable_if_t<emu::width_of<S> == 1 && __is_convertible(S, T), int> = 0>
  constexpr vec(S value) : vec(Fill{}, static_cast<T>(value)) {}
  template <class S, enable_if_t<emu::width_of<S> == 1 && !__is_convertible(S, T) &&
                                     __is_constructible(T, S),
                                 long> = 0>
  constexpr explicit vec(S value) : vec(Fill{}, static_cast<T>(value)) {}
  template <class U, enable_if_t<!is_same_v<U, T>, int> = 0>
  constexpr explicit vec(const vec<U, N>& other) : vec(Zero{}) {
    for (int i = 0; i < N; i++) d[i] = static_cast<T>(other.d[i]);
  }
  template <class U, enable_if_t<!is_same_v<U, T>, int> = 0>
  constexpr explicit vec(const packed_vec<U, N>& other) : vec(Zero{}) {
    for (int i = 0; i < N; i++) d[i] = static_cast<T>(other.d[i]);
  }
  // Scalars and vectors in any order that fill exactly N elements: float4(a.xy, b, 1.0f).
  template <class A, class B, class... More>
  constexpr vec(const A& a, const B& b, const More&... more) : vec(Zero{}) {
    static_assert(emu::width_of<A> + emu::width_of<B> + (emu::width_of<More> + ... + 0) == N,
                  "a vector needs as many values as it has elements");
    int k = 0;
    put(k, a);
    put(k, b);
    (put(k, more), ...);
  }

  constexpr T& operator[](long i) { return d[i]; }
  constexpr const T& operator[](long i) const { return d[i]; }

  constexpr vec operator+() const { return *this; }
  constexpr vec operator-() const {
    vec result(Zero{});
    for (int i = 0; i < N; i++) result.d[i] = static_cast<T>(-d[i]);
    return result;
  }
  constexpr vec operator~() const {
    vec result(Zero{});
    for (int i = 0; i < N; i++) result.d[i] = static_cast<T>(~d[i]);
    return result;
  }
  constexpr vec<bool, N> operator!() const {
    vec<bool, N> result(false);
    for (int i = 0; i < N; i++) result.d[i] = !d[i];
    return result;
  }
  constexpr vec& operator++() {
    for (int i = 0; i < N; i++) ++d[i];
    return *this;
  }
  constexpr vec& operator--() {
    for (int i = 0; i < N; i++) --d[i];
    return *this;
  }
  constexpr vec operator++(int) {
    vec old = *this;
    ++*this;
    return old;
  }
  constexpr vec operator--(int) {
    vec old = *this;
    --*this;
    return old;
  }

 private:
  struct Fill {};
  struct Zero {};
  constexpr vec(Fill, T value) : vec(Zero{}) {
    for (int i = 0; i < N; i++) d[i] = value;
  }
  constexpr explicit vec(Zero) : Base{} {}

  template <class S>
  constexpr void put(int& k, const S& value) {
    d[k++] = static_cast<T>(value);
  }
  template <class U, int M>
  constexpr void put(int& k, const vec<U, M>& value) {
    for (int i = 0; i < M; i++) d[k++] = static_cast<T>(value.d[i]);
  }
  template <class U, int M>
  constexpr void put(int& k, const packed_vec<U, M>& value) {
    for (int i = 0; i < M; i++) d[k++] = static_cast<T>(value.d[i]);
  }
};

// Shift counts are taken modulo the width of the element (specification 4, section 3.1).
template <class T>
constexpr T shift_count(T count) {
  return count & static_cast<T>(8 * sizeof(T) - 1);
}

#define EMU_OPERATOR(op, R, right)                                                     \
  template <class T, int N>                                                            \
  constexpr vec<R, N> operator op(const vec<T, N>& a, const vec<T, N>& b) {            \
    vec<R, N> result(static_cast<R>(0));                                               \
    for (int i = 0; i < N; i++) result.d[i] = static_cast<R>(a.d[i] op right(b.d[i])); \
    return result;                                                                     \
  }                                                                                    \
  template <class T, int N, class S, enable_if_t<emu::splats<S, T>, int> = 0>          \
  constexpr vec<R, N> operator op(const vec<T, N>& a, S b) {                           \
    return a op vec<T, N>(static_cast<T>(b));                                          \
  }                                                                                    \
  template <class T, int N, class S, enable_if_t<emu::splats<S, T>, int> = 0>          \
  constexpr vec<R, N> operator op(S a, const vec<T, N>& b) {                           \
    return vec<T, N>(static_cast<T>(a)) op b;                                          \
  }
#define EMU_ARITHMETIC(op, right)                             \
  EMU_OPERATOR(op, T, right)                                  \
  template <class T, int N, class S>                          \
  constexpr vec<T, N>& operator op## = (vec<T, N> & a, S b) { \
    return a = a op b;                                        \
  }
EMU_ARITHMETIC(+, )
EMU_ARITHMETIC(-, )
EMU_ARITHMETIC(*, )
EMU_ARITHMETIC(/, )
EMU_ARITHMETIC(%, )
EMU_ARITHMETIC(&, )
EMU_ARITHMETIC(|, )
EMU_ARITHMETIC(^, )
EMU_ARITHMETIC(<<, shift_count)
EMU_ARITHMETIC(>>, shift_count)
EMU_OPERATOR(<, bool, )
EMU_OPERATOR(>, bool, )
EMU_OPERATOR(<=, bool, )
EMU_OPERATOR(>=, bool, )
EMU_OPERATOR(==, bool, )
EMU_OPERATOR(!=, bool, )
EMU_OPERATOR(&&, bool, )
EMU_OPERATOR(||, bool, )
#undef EMU_ARITHMETIC
#undef EMU_OPERATOR

}  // namespace metal

EMU_VALUES_END
