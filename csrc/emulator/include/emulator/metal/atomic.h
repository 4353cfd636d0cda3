#pragma once

#include "emulator/metal/barrier.h"
#include "emulator/metal/vector.h"

// metal_atomic (specification 4, section 6.15). Real atomics of the CPU, since threadgroups run in
// parallel; the kernel's memory order is not used: all are sequentially consistent.

EMU_SHIM_BEGIN

enum memory_order {
  memory_order_relaxed = 0,
  memory_order_acquire = 2,
  memory_order_release = 3,
  memory_order_acq_rel = 4,
  memory_order_seq_cst = 5,
};

namespace metal {

using ::memory_order;
using ::memory_order_acq_rel;
using ::memory_order_acquire;
using ::memory_order_relaxed;
using ::memory_order_release;
using ::memory_order_seq_cst;

template <class T>
struct _atomic {
  static_assert(is_same_v<T, int> || is_same_v<T, uint> || is_same_v<T, bool> ||
                    is_same_v<T, float> || is_same_v<T, ulong>,
                "atomic<T> needs T to be int, uint, bool, ulong or float");
  T value;

  _atomic() = default;
  _atomic(const _atomic&) = delete;
  _atomic& operator=(const _atomic&) = delete;
};
template <class T>
using atomic = _atomic<T>;
using atomic_int = atomic<int>;
using atomic_uint = atomic<uint>;
using atomic_bool = atomic<bool>;
using atomic_ulong = atomic<ulong>;
using atomic_float = atomic<float>;

}  // namespace metal

using metal::atomic_bool;
using metal::atomic_float;
using metal::atomic_int;
using metal::atomic_uint;
using metal::atomic_ulong;

namespace emu {

template <class T>
inline T* atomic_address(const volatile metal::_atomic<T>* object) {
  T* address = const_cast<T*>(&object->value);
  account_atomic(address, sizeof(T));
  return address;
}

// f(old) replaces the value; returns the old one. For what the CPU has no instruction for.
template <class T, class F>
inline T atomic_update(T* address, F f) {
  T old;
  __atomic_load(address, &old, __ATOMIC_SEQ_CST);
  for (;;) {
    T next = f(old);
    if (__atomic_compare_exchange(address, &old, &next, false, __ATOMIC_SEQ_CST,
                                  __ATOMIC_SEQ_CST)) {
      return old;
    }
  }
}

}  // namespace emu

namespace metal {

template <class T>
inline T atomic_load_explicit(const volatile _atomic<T>* object, memory_order) {
  T value;
  __atomic_load(emu::atomic_address(object), &value, __ATOMIC_SEQ_CST);
  return value;
}
template <class T, class U, enable_if_t<__is_convertible(U, T), int> = 0>
inline void atomic_store_explicit(volatile _atomic<T>* object, U desired, memory_order) {
  T value = static_cast<T>(desired);
  __atomic_store(emu::atomic_address(object), &value, __ATOMIC_SEQ_CST);
}
template <class T, class U, enable_if_t<__is_convertible(U, T), int> = 0>
inline T atomic_exchange_explicit(volatile _atomic<T>* object, U desired, memory_order) {
  T value = static_cast<T>(desired), old;
  __atomic_exchange(emu::atomic_address(object), &value, &old, __ATOMIC_SEQ_CST);
  return old;
}
// Compares bits, also for float.
template <class T, class U, enable_if_t<__is_convertible(U, T), int> = 0>
inline bool atomic_compare_exchange_weak_explicit(volatile _atomic<T>* object, T* expected,
                                                  U desired, memory_order, memory_order) {
  T value = static_cast<T>(desired);
  return __atomic_compare_exchange(emu::atomic_address(object), expected, &value, false,
                                   __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

#define EMU_FETCH(name, allowed, expression)                                                      \
  template <class T, class U, enable_if_t<__is_convertible(U, T) && (allowed), int> = 0>          \
  inline T atomic_fetch_##name##_explicit(volatile _atomic<T>* object, U operand, memory_order) { \
    const T b = static_cast<T>(operand);                                                          \
    return emu::atomic_update(emu::atomic_address(object),                                        \
                              [b](T a) { return static_cast<T>(expression); });                   \
  }
#define EMU_IS_INT (is_same_v<T, int> || is_same_v<T, uint>)
EMU_FETCH(add, EMU_IS_INT || (is_same_v<T, float>), a + b)
EMU_FETCH(sub, EMU_IS_INT || (is_same_v<T, float>), a - b)
EMU_FETCH(and, EMU_IS_INT, a& b)
EMU_FETCH(or, EMU_IS_INT, a | b)
EMU_FETCH(xor, EMU_IS_INT, a ^ b)
EMU_FETCH(max, EMU_IS_INT, a < b ? b : a)
EMU_FETCH(min, EMU_IS_INT, b < a ? b : a)
#undef EMU_IS_INT
#undef EMU_FETCH

// The 64-bit operations return nothing.
template <class U, enable_if_t<__is_convertible(U, ulong), int> = 0>
inline void atomic_max_explicit(volatile _atomic<ulong>* object, U operand, memory_order) {
  const ulong b = static_cast<ulong>(operand);
  emu::atomic_update(emu::atomic_address(object), [b](ulong a) { return a < b ? b : a; });
}
template <class U, enable_if_t<__is_convertible(U, ulong), int> = 0>
inline void atomic_min_explicit(volatile _atomic<ulong>* object, U operand, memory_order) {
  const ulong b = static_cast<ulong>(operand);
  emu::atomic_update(emu::atomic_address(object), [b](ulong a) { return b < a ? b : a; });
}

inline void atomic_thread_fence(mem_flags, memory_order) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
inline void atomic_thread_fence(mem_flags, memory_order, thread_scope) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

}  // namespace metal

EMU_SHIM_END
