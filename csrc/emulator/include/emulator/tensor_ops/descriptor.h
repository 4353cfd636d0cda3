#pragma once

#include "emulator/tensor_ops/tensor.h"

// The vocabulary of mpp::tensor_ops: execution scopes, the descriptor of matmul2d, reductions
// (MPPTensorOpsTypes.h and MPPTensorOpsMatMul2d.h of the macOS 27 SDK).

EMU_SHIM_BEGIN

namespace metal {

template <int N>
struct execution_threads {
  static constexpr int size() { return N; }
};
template <int N>
struct execution_simdgroups {
  static constexpr int size() { return N; }
};
using execution_thread = execution_threads<1>;
using execution_simdgroup = execution_simdgroups<1>;

}  // namespace metal

namespace mpp {
namespace tensor_ops {

template <class T>
constexpr T dynamic_length_v = metal::numeric_limits<T>::max();
template <class T>
constexpr T dynamic_length = metal::numeric_limits<T>::max();

struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };

  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode matmul_mode;

  constexpr matmul2d_descriptor(int rows, int cols,
                                int depth = static_cast<int>(metal::dynamic_extent),
                                bool left_transposed = false, bool right_transposed = false,
                                bool relaxed = false, mode how = mode::multiply)
      : m(rows),
        n(cols),
        k(depth),
        transpose_left(left_transposed),
        transpose_right(right_transposed),
        relaxed_precision(relaxed),
        matmul_mode(how) {}

  // Metal passes the descriptor as a template argument of class type, which C++ has since C++20
  // only: here it becomes a number. Both marks of a dynamic k are one.
  constexpr operator unsigned long() const {
    const unsigned long depth = is_dynamic(k) ? kDynamic : static_cast<unsigned long>(k) & kDynamic;
    return (static_cast<unsigned long>(m) & 0xffff) |
           (static_cast<unsigned long>(n) & 0xffff) << 16 | depth << 32 |
           static_cast<unsigned long>(transpose_left) << 56 |
           static_cast<unsigned long>(transpose_right) << 57 |
           static_cast<unsigned long>(relaxed_precision) << 58 |
           static_cast<unsigned long>(matmul_mode == mode::multiply_accumulate) << 59;
  }
  static constexpr matmul2d_descriptor unpack(unsigned long packed) {
    const unsigned long depth = packed >> 32 & kDynamic;
    return matmul2d_descriptor(
        static_cast<int>(packed & 0xffff), static_cast<int>(packed >> 16 & 0xffff),
        depth == kDynamic ? -1 : static_cast<int>(depth), (packed >> 56 & 1) != 0,
        (packed >> 57 & 1) != 0, (packed >> 58 & 1) != 0,
        (packed >> 59 & 1) != 0 ? mode::multiply_accumulate : mode::multiply);
  }
  static constexpr bool is_dynamic(int depth) {
    return depth == static_cast<int>(metal::dynamic_extent) || depth == dynamic_length_v<int>;
  }

 private:
  static constexpr unsigned long kDynamic = 0xffffff;
};

enum class reduction_operation { sum, max, min };

template <class T>
struct reduction_operation_identity {
  static constexpr T sum_identity = T(0);
  static constexpr T max_identity = metal::numeric_limits<T>::lowest();
  static constexpr T min_identity = metal::numeric_limits<T>::max();
};

}  // namespace tensor_ops
}  // namespace mpp

namespace emu {

// How many threads of the threadgroup an operation of the scope involves; 1 is execution_thread.
template <class Scope>
struct ScopeThreads;
template <>
struct ScopeThreads<metal::execution_thread> {
  static constexpr int value = 1;
};
template <int N>
struct ScopeThreads<metal::execution_simdgroups<N>> {
  static constexpr int value = 32 * N;
};

}  // namespace emu

EMU_SHIM_END
