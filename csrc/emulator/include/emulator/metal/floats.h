#pragma once

#include "emulator/metal/traits.h"

// bfloat and as_type. half is _Float16; the rewriter knows the literals of both.

EMU_VALUES_BEGIN

// Metal's rules for bfloat (specification 3.1 and later, section 2.1, quoted in MLX's bf16_math.h):
// it converts implicitly to a type of higher floating rank only, that is float, and neither float
// nor half converts to it implicitly. clang's __bf16 converts both ways and cannot be cast from
// _Float16, so bfloat is a class. The conversion to float is a template to keep it from being the
// first step of a conversion to int: `c ? b : 0` is a bfloat here as in Metal.
struct bfloat {
  uint16_t bits;

  bfloat() = default;
  template <class I, metal::enable_if_t<__is_integral(I), int> = 0>
  constexpr bfloat(I value) : bits(round(static_cast<float>(value))) {}
  template <class F, metal::enable_if_t<!__is_integral(F) && __is_convertible(F, float), long> = 0>
  constexpr explicit bfloat(F value) : bits(round(static_cast<float>(value))) {}

  template <class F, metal::enable_if_t<metal::is_same_v<F, float>, int> = 0>
  constexpr operator F() const {
    return __builtin_bit_cast(float, static_cast<uint32_t>(bits) << 16);
  }
  template <class S, metal::enable_if_t<!metal::is_same_v<S, float> &&
                                            (__is_arithmetic(S) || metal::is_same_v<S, half>),
                                        long> = 0>
  constexpr explicit operator S() const {
    return static_cast<S>(static_cast<float>(*this));
  }

  // To nearest, ties to even: what MLX's CPU back end does too, so results can be compared.
  static constexpr uint16_t round(float value) {
    const uint32_t word = __builtin_bit_cast(uint32_t, value);
    if ((word & 0x7fffffff) > 0x7f800000) {
      return static_cast<uint16_t>(word >> 16 | 0x40);
    }
    return static_cast<uint16_t>((word + 0x7fff + (word >> 16 & 1)) >> 16);
  }
  static constexpr bfloat from_bits(uint16_t bits) {
    bfloat result(0);
    result.bits = bits;
    return result;
  }

  constexpr bfloat operator-() const { return from_bits(bits ^ 0x8000); }
  constexpr bfloat operator+() const { return *this; }

#define EMU_ASSIGN(op)                                                             \
  template <class S>                                                               \
  constexpr bfloat& operator op## = (S value) {                                    \
    return *this = bfloat(static_cast<float>(*this) op static_cast<float>(value)); \
  }
  EMU_ASSIGN(+)
  EMU_ASSIGN(-)
  EMU_ASSIGN(*)
  EMU_ASSIGN(/)
#undef EMU_ASSIGN
  constexpr bfloat& operator++() { return *this += 1; }
  constexpr bfloat& operator--() { return *this -= 1; }
};

// Between two bfloats, or a bfloat and an integer, arithmetic has bfloat results, each rounded.
// With a float operand the conversion above selects the compiler's float arithmetic.
#define EMU_OPERATOR(op, R)                                         \
  constexpr R operator op(bfloat a, bfloat b) {                     \
    return R(static_cast<float>(a) op static_cast<float>(b));       \
  }                                                                 \
  template <class I, metal::enable_if_t<__is_integral(I), int> = 0> \
  constexpr R operator op(bfloat a, I b) {                          \
    return a op bfloat(b);                                          \
  }                                                                 \
  template <class I, metal::enable_if_t<__is_integral(I), int> = 0> \
  constexpr R operator op(I a, bfloat b) {                          \
    return bfloat(a) op b;                                          \
  }
EMU_OPERATOR(+, bfloat)
EMU_OPERATOR(-, bfloat)
EMU_OPERATOR(*, bfloat)
EMU_OPERATOR(/, bfloat)
EMU_OPERATOR(<, bool)
EMU_OPERATOR(>, bool)
EMU_OPERATOR(<=, bool)
EMU_OPERATOR(>=, bool)
EMU_OPERATOR(==, bool)
EMU_OPERATOR(!=, bool)
#undef EMU_OPERATOR

// Sizes must agree; packed and unpacked vectors of three differ in size (specification, 2.19).
template <class To, class From>
constexpr To as_type(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "as_type: the types must have the same size");
  return __builtin_bit_cast(To, from);
}

EMU_VALUES_END
