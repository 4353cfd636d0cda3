#pragma once

#include "emulator/tensor_ops/operands.h"

// What one run of matmul2d computes: operands are gathered into row-major matrices of the type of
// the accumulator, multiplied, and the result is scattered. Accumulators are float (products of
// 16-bit floats were measured to accumulate in at least that, the result rounded once) or int32,
// wrapping. The order of a sum is unspecified; here K ascends.

EMU_SHIM_BEGIN

namespace emu {

// Scratch memory of this OS thread, reused between runs.
template <class T>
inline T* scratch(size_t n) {
  static thread_local T* memory = nullptr;
  static thread_local size_t room = 0;
  if (room < n) {
    memory = static_cast<T*>(__builtin_realloc(memory, n * sizeof(T)));
    room = n;
  }
  return memory;
}

template <class Accumulator, class V>
inline Accumulator input_value(V value, bool truncates) {
  if constexpr (metal::is_same_v<V, float>) {
    // relaxed_precision was measured to keep about 11 significant bits of float inputs on M5.
    if (truncates)
      value = __builtin_bit_cast(float, __builtin_bit_cast(uint32_t, value) & 0xffffe000);
  }
  return static_cast<Accumulator>(value);
}

// A logical rows x cols matrix; `transposed` says how the operand stores it. A policy of the launch
// decides about relaxed_precision, so it is asked once an operand.
struct MatrixShape {
  int rows, cols;
  bool transposed, truncates;
};

template <class Accumulator, class Tensor>
inline void gather_tensor(Accumulator* to, const Tensor& from, const MatrixShape& shape) {
  bool broken = false;
  for (int row = 0; row < shape.rows; row++) {
    for (int col = 0; col < shape.cols; col++) {
      const long at[2] = {shape.transposed ? row : col, shape.transposed ? col : row};
      const Edge where = edge(from, at);
      broken = broken || where == Edge::kBroken;
      to[row * shape.cols + col] =
          where == Edge::kInside ? input_value<Accumulator>(from.emu_read(at), shape.truncates)
                                 : static_cast<Accumulator>(0);
    }
  }
  if (broken) report_broken();
}

template <class Accumulator, class Held>
inline void gather_held(Accumulator* to, const Held& from, int thread, const MatrixShape& shape) {
  using Slots = typename Held::Slots;
  const auto& map = Held::Map::get();
  for (int slot = 0; slot < map.capacity; slot++) {
    const uint32_t element = map.at(thread, slot);
    if (element == kNoElement) continue;
    const uint32_t row = element / Slots::kCols, col = element % Slots::kCols;
    const uint32_t index =
        shape.transposed ? col * static_cast<uint32_t>(shape.cols) + row : element;
    to[index] = input_value<Accumulator>(from.slots[slot], shape.truncates);
  }
}

template <class A, class B, class C>
struct RunSlot {
  const A* left;
  const B* right;
  C* destination;
};

template <unsigned long D, int threads, class A, class B, class C>
struct Run {
  static constexpr auto desc = mpp::tensor_ops::matmul2d_descriptor::unpack(D);
  static constexpr bool accumulates =
      desc.matmul_mode == mpp::tensor_ops::matmul2d_descriptor::mode::multiply_accumulate;
  using Slot = RunSlot<A, B, C>;
  using Value = element_type_of<C>;
  using Accumulator = metal::conditional_t<metal::is_same_v<Value, int32_t>, int32_t, float>;

  template <class X>
  static bool truncates() {
    return desc.relaxed_precision && metal::is_same_v<element_type_of<X>, float> &&
           policies().relaxed_truncates;
  }

  // Extents along K of the operands in memory decide where they are shorter. With a static K Metal
  // may mask what is missing or read past it; two operands that disagree are never right.
  static int depth(const Slot& slot) {
    long left = 1l << 30, right = 1l << 30;
    if constexpr (is_tensor<A>) left = slot.left->get_extent(desc.transpose_left ? 1 : 0);
    if constexpr (is_tensor<B>) right = slot.right->get_extent(desc.transpose_right ? 0 : 1);
    const long shorter = left < right ? left : right;
    if (desc.k < 0) {
      if (left != right && policies().static_k_traps) {
        fault("dynamic_k_extents",
              "left and right operand of a dynamic K differ in their extent of K");
      }
      return static_cast<int>(shorter);
    }
    if (shorter < desc.k && policies().static_k_traps) {
      fault("static_k_extents", "an operand is shorter than the static K of matmul2d");
    }
    return static_cast<int>(shorter < desc.k ? shorter : desc.k);
  }

  static void multiply(const Accumulator* left, const Accumulator* right, Accumulator* result,
                       int k) {
    // Unsigned, because int32 sums may wrap.
    using Sum = metal::conditional_t<metal::is_same_v<Accumulator, int32_t>, uint32_t, float>;
    for (int row = 0; row < desc.m; row++) {
      Sum* sums = reinterpret_cast<Sum*>(result + row * desc.n);
      for (int i = 0; i < k; i++) {
        const Sum factor = static_cast<Sum>(left[row * k + i]);
        const Sum* line = reinterpret_cast<const Sum*>(right + i * desc.n);
#pragma clang loop vectorize(enable)
        for (int col = 0; col < desc.n; col++) sums[col] += factor * line[col];
      }
    }
  }

  static void scatter(const Accumulator* result, const C& to, int thread, C& destination) {
    if constexpr (is_tensor<C>) {
      bool broken = false;
      for (long row = 0; row < desc.m; row++) {
        for (long col = 0; col < desc.n; col++) {
          const long at[2] = {col, row};
          const Edge where = edge(to, at);
          broken = broken || where == Edge::kBroken;
          if (where == Edge::kInside) to.emu_write(at, result[row * desc.n + col]);
        }
      }
      if (broken) report_broken();
    } else {
      const auto& map = C::Map::get();
      for (int slot = 0; slot < map.capacity; slot++) {
        const uint32_t element = map.at(thread, slot);
        if (element != kNoElement) destination.slots[slot] = static_cast<Value>(result[element]);
      }
    }
  }

  static void compute(void** slots, int n, int n_active) {
    require_lanes(n_active, threads);
    Slot* first = nullptr;
    for (int i = 0; i < n && first == nullptr; i++) first = static_cast<Slot*>(slots[i]);
    check_uniform(slots, n, *first);
    const int k = depth(*first);
    const size_t left_size = static_cast<size_t>(desc.m * k),
                 right_size = static_cast<size_t>(k * desc.n);
    const size_t size = left_size + right_size + static_cast<size_t>(desc.m * desc.n);
    Accumulator* left = scratch<Accumulator>(size);
    Accumulator *right = left + left_size, *result = right + right_size;
    __builtin_memset(left, 0, size * sizeof(Accumulator));

    const MatrixShape left_shape{desc.m, k, desc.transpose_left, truncates<A>()};
    const MatrixShape right_shape{k, desc.n, desc.transpose_right, truncates<B>()};
    const MatrixShape result_shape{desc.m, desc.n, false, false};
    gather(left, slots, n, &Slot::left, left_shape);
    gather(right, slots, n, &Slot::right, right_shape);
    if (accumulates || (is_tensor<C> && policies().multiply_accumulates)) {
      gather(result, slots, n, &Slot::destination, result_shape);
    }
    multiply(left, right, result, k);
    for (int i = 0; i < n; i++) {
      if (slots[i] == nullptr) continue;
      C& destination = *static_cast<Slot*>(slots[i])->destination;
      scatter(result, destination, i, destination);
      if (is_tensor<C>) break;
    }
    count(2ull * desc.m * desc.n * static_cast<uint64_t>(k));
  }

  // Apart what runs at another rate than 16-bit floats on GPUs with matrix units.
  static void count(uint64_t flops) {
    constexpr bool strict =
        !desc.relaxed_precision && is_one_of<float, element_type_of<A>, element_type_of<B>>;
    counters().matmul_flops += flops;
    counters().matmul_calls += 1;
    if (strict) counters().strict_float_flops += flops;
    if (metal::is_same_v<Accumulator, int32_t>) counters().integer_flops += flops;
  }

  template <class X>
  static void gather(Accumulator* to, void** slots, int n, X* Slot::* operand,
                     const MatrixShape& shape) {
    for (int i = 0; i < n; i++) {
      if (slots[i] == nullptr) continue;
      const X& from = *(static_cast<Slot*>(slots[i])->*operand);
      if constexpr (is_tensor<metal::remove_cv_t<X>>) {
        gather_tensor(to, from, shape);
        break;
      } else {
        gather_held(to, from, i, shape);
      }
    }
  }

  static void check_uniform(void** slots, int n, const Slot& first) {
    for (int i = 0; i < n; i++) {
      if (slots[i] == nullptr) continue;
      const Slot& slot = *static_cast<Slot*>(slots[i]);
      bool same = true;
      if constexpr (is_tensor<A>) same = same && slot.left->emu_same(*first.left);
      if constexpr (is_tensor<B>) same = same && slot.right->emu_same(*first.right);
      if constexpr (is_tensor<C>) same = same && slot.destination->emu_same(*first.destination);
      if (!same) {
        report("tensor_not_uniform",
               "the threads of a scope name different tensors for one operation");
        return;
      }
    }
  }
};

}  // namespace emu

EMU_SHIM_END
