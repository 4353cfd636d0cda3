#pragma once

#include "emulator/runtime.h"

// metal_type_traits: the part of C++'s <type_traits> that Metal has, over compiler builtins,
// because kernels are compiled without a C++ library. void_t and is_empty are not part of it: MLX's
// type_traits.h defines them in namespace metal.

// Around functions on values: findings inside them belong to the kernel's line that calls them, and
// the trace build instruments them, because an operand may lie in device memory.
#define EMU_VALUES_BEGIN \
  EMU_PRAGMA(clang attribute push(__attribute__((nodebug)), apply_to = hasType(functionType)))
#define EMU_VALUES_END EMU_PRAGMA(clang attribute pop)

namespace metal {

template <class T, T v>
struct integral_constant {
  static constexpr T value = v;
  using value_type = T;
  using type = integral_constant;
  constexpr operator T() const noexcept { return v; }
  constexpr T operator()() const noexcept { return v; }
};
template <bool B>
using bool_constant = integral_constant<bool, B>;
using true_type = bool_constant<true>;
using false_type = bool_constant<false>;

template <bool B, class T = void>
struct enable_if {};
template <class T>
struct enable_if<true, T> {
  using type = T;
};
template <bool B, class T = void>
using enable_if_t = typename enable_if<B, T>::type;

template <bool B, class T, class F>
struct conditional {
  using type = T;
};
template <class T, class F>
struct conditional<false, T, F> {
  using type = F;
};
template <bool B, class T, class F>
using conditional_t = typename conditional<B, T, F>::type;

template <class... B>
struct conjunction : bool_constant<(B::value && ...)> {};
template <class... B>
struct disjunction : bool_constant<(B::value || ...)> {};
template <class B>
struct negation : bool_constant<!B::value> {};
template <class... B>
constexpr bool conjunction_v = (B::value && ...);
template <class... B>
constexpr bool disjunction_v = (B::value || ...);
// MLX's atomic.h uses these internal names of Apple's headers.
template <class... B>
struct _conjunction : bool_constant<(B::value && ...)> {};
template <class... B>
struct _disjunction : bool_constant<(B::value || ...)> {};

template <class A, class B>
struct is_same : bool_constant<__is_same(A, B)> {};
template <class A, class B>
constexpr bool is_same_v = __is_same(A, B);

#define EMU_TRANSFORM(name, builtin) \
  template <class T>                 \
  struct name {                      \
    using type = builtin(T);         \
  };                                 \
  template <class T>                 \
  using name##_t = builtin(T);
EMU_TRANSFORM(remove_const, __remove_const)
EMU_TRANSFORM(remove_volatile, __remove_volatile)
EMU_TRANSFORM(remove_cv, __remove_cv)
EMU_TRANSFORM(remove_reference, __remove_reference_t)
EMU_TRANSFORM(remove_pointer, __remove_pointer)
EMU_TRANSFORM(remove_cvref, __remove_cvref)
EMU_TRANSFORM(remove_extent, __remove_extent)
EMU_TRANSFORM(add_lvalue_reference, __add_lvalue_reference)
EMU_TRANSFORM(add_rvalue_reference, __add_rvalue_reference)
EMU_TRANSFORM(add_pointer, __add_pointer)
EMU_TRANSFORM(decay, __decay)
EMU_TRANSFORM(make_signed, __make_signed)
EMU_TRANSFORM(make_unsigned, __make_unsigned)
EMU_TRANSFORM(underlying_type, __underlying_type)
#undef EMU_TRANSFORM

template <class T>
struct add_const {
  using type = const T;
};
template <class T>
using add_const_t = const T;

// The rewriter erases address spaces, so there is nothing left to remove.
template <class T>
struct remove_addrspace {
  using type = T;
};
template <class T>
using remove_addrspace_t = T;

#define EMU_PREDICATE(name, ...)               \
  template <class T>                           \
  struct name : bool_constant<__VA_ARGS__> {}; \
  template <class T>                           \
  constexpr bool name##_v = name<T>::value;
EMU_PREDICATE(is_void, __is_void(T))
EMU_PREDICATE(is_pointer, __is_pointer(T))
EMU_PREDICATE(is_lvalue_reference, __is_lvalue_reference(T))
EMU_PREDICATE(is_rvalue_reference, __is_rvalue_reference(T))
EMU_PREDICATE(is_reference, __is_reference(T))
EMU_PREDICATE(is_array, __is_array(T))
EMU_PREDICATE(is_const, __is_const(T))
EMU_PREDICATE(is_volatile, __is_volatile(T))
EMU_PREDICATE(is_enum, __is_enum(T))
EMU_PREDICATE(is_class, __is_class(T))
EMU_PREDICATE(is_union, __is_union(T))
EMU_PREDICATE(is_function, __is_function(T))
EMU_PREDICATE(is_trivially_copyable, __is_trivially_copyable(T))
EMU_PREDICATE(is_default_constructible, __is_constructible(T))
EMU_PREDICATE(is_copy_constructible, __is_constructible(T, const T&))

template <class F, class T>
struct is_convertible : bool_constant<__is_convertible(F, T)> {};
template <class F, class T>
constexpr bool is_convertible_v = __is_convertible(F, T);
template <class B, class D>
struct is_base_of : bool_constant<__is_base_of(B, D)> {};
template <class B, class D>
constexpr bool is_base_of_v = __is_base_of(B, D);
template <class T, class... A>
struct is_constructible : bool_constant<__is_constructible(T, A...)> {};
template <class T, class... A>
constexpr bool is_constructible_v = __is_constructible(T, A...);
template <class T, class A>
struct is_assignable : bool_constant<__is_assignable(T, A)> {};
template <class T, class A>
constexpr bool is_assignable_v = __is_assignable(T, A);

template <class T>
__add_rvalue_reference(T) declval() noexcept;

template <class T>
constexpr __remove_reference_t(T)&& move(T&& value) noexcept {
  return static_cast<__remove_reference_t(T)&&>(value);
}
template <class T>
constexpr T&& forward(__remove_reference_t(T)& value) noexcept {
  return static_cast<T&&>(value);
}
template <class T>
constexpr void swap(T& a, T& b) {
  T kept = a;
  a = b;
  b = kept;
}

template <class T, int N>
struct vec;
template <class T, int N>
struct packed_vec;

}  // namespace metal

typedef _Float16 half;
struct bfloat;

namespace emu {

template <class T>
struct ElementOf {
  using type = T;
};
template <class T, int N>
struct ElementOf<metal::vec<T, N>> {
  using type = T;
};
template <class T, int N>
struct ElementOf<metal::packed_vec<T, N>> {
  using type = T;
};

// Metal has no long double, and double only as a name that is refused elsewhere.
template <class T>
constexpr bool is_scalar_float =
    metal::is_same_v<T, float> || metal::is_same_v<T, half> || metal::is_same_v<T, bfloat>;
template <class T>
constexpr bool is_scalar_integral = __is_integral(T);
template <class T>
constexpr bool is_scalar_number = is_scalar_float<__remove_cv(T)> || __is_integral(T);

template <class T>
using element_of = typename ElementOf<__remove_cv(T)>::type;

}  // namespace emu

namespace metal {

// The categories hold for vectors too: Apple's headers call is_floating_point on vectors.
EMU_PREDICATE(is_scalar, emu::is_scalar_number<T> || __is_pointer(T) || __is_enum(T))
EMU_PREDICATE(is_vector, !__is_same(emu::element_of<T>, __remove_cv(T)))
EMU_PREDICATE(is_integral, emu::is_scalar_integral<emu::element_of<T>>)
EMU_PREDICATE(is_floating_point, emu::is_scalar_float<emu::element_of<T>>)
EMU_PREDICATE(is_arithmetic, emu::is_scalar_number<emu::element_of<T>>)
EMU_PREDICATE(is_unsigned, __is_unsigned(emu::element_of<T>))
EMU_PREDICATE(is_signed, is_arithmetic_v<T> && !__is_unsigned(emu::element_of<T>))
#undef EMU_PREDICATE

template <class T>
struct make_scalar {
  using type = emu::element_of<T>;
};
template <class T>
using make_scalar_t = emu::element_of<T>;

}  // namespace metal
