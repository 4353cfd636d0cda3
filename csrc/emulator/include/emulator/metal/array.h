#pragma once

#include "emulator/metal/limits.h"

// metal_array, metal_uniform, metal_logging.

EMU_VALUES_BEGIN

namespace metal {

template <class T, size_t N>
struct array {
  using value_type = T;
  T elements[N];

  constexpr T& operator[](size_t i) { return elements[i]; }
  constexpr const T& operator[](size_t i) const { return elements[i]; }
  constexpr T* data() { return elements; }
  constexpr const T* data() const { return elements; }
  static constexpr size_t size() { return N; }
  static constexpr bool empty() { return N == 0; }
  constexpr T& front() { return elements[0]; }
  constexpr const T& front() const { return elements[0]; }
  constexpr T& back() { return elements[N - 1]; }
  constexpr const T& back() const { return elements[N - 1]; }
};
template <class T, class... More>
array(T, More...) -> array<T, 1 + sizeof...(More)>;

template <class T, size_t N>
constexpr bool operator==(const array<T, N>& a, const array<T, N>& b) {
  for (size_t i = 0; i < N; i++) {
    if (!(a[i] == b[i])) return false;
  }
  return true;
}
template <class T, size_t N>
constexpr bool operator!=(const array<T, N>& a, const array<T, N>& b) {
  return !(a == b);
}

// A promise that all lanes hold the same value (specification 4, section 2.18); not checked.
template <class T>
struct uniform {
  using value_type = T;
  T value;

  uniform() = default;
  constexpr uniform(T v) : value(v) {}
  template <class U>
  constexpr uniform(const uniform<U>& other) : value(static_cast<T>(other.value)) {}
  constexpr operator T() const { return value; }
};
template <class T>
constexpr uniform<T> make_uniform(T value) {
  return uniform<T>(value);
}
template <class T>
struct is_uniform : false_type {};
template <class T>
struct is_uniform<uniform<T>> : true_type {};
template <class T>
constexpr bool is_uniform_v = is_uniform<T>::value;

// An operation on uniforms is uniform; with anything else the conversion makes it an ordinary one.
#define EMU_OPERATOR(op)                                   \
  template <class A, class B>                              \
  constexpr auto operator op(uniform<A> a, uniform<B> b) { \
    return make_uniform(a.value op b.value);               \
  }
EMU_OPERATOR(+)
EMU_OPERATOR(-)
EMU_OPERATOR(*)
EMU_OPERATOR(/)
EMU_OPERATOR(%)
EMU_OPERATOR(<)
EMU_OPERATOR(>)
EMU_OPERATOR(<=)
EMU_OPERATOR(>=)
EMU_OPERATOR(==)
EMU_OPERATOR(!=)
EMU_OPERATOR(&&)
EMU_OPERATOR(||)
#undef EMU_OPERATOR

// Accepts what MLX's logging.h does with it; messages are dropped.
struct os_log {
  constexpr os_log(const char*, const char*) {}
  template <class... A>
  void log(const A&...) const {}
  template <class... A>
  void log_debug(const A&...) const {}
  template <class... A>
  void log_info(const A&...) const {}
  template <class... A>
  void log_error(const A&...) const {}
  template <class... A>
  void log_fault(const A&...) const {}
};
constexpr os_log os_log_default("", "");

}  // namespace metal

EMU_VALUES_END

#define assert(condition) ((void)0)
