#pragma once

#include "emulator/tensor_ops/descriptor.h"
#include "emulator/tensor_ops/element_table.h"
#include "emulator/tensor_ops/transfer.h"

// What a cooperative tensor of matmul2d remembers, and the rules about operands that Apple's header
// asserts (MPPTensorOpsMatMul2dImpl.h of the macOS 26.5 SDK), with its wording where it is known.

EMU_SHIM_BEGIN

namespace emu {

// The layout type of the cooperative tensors of one operation: the descriptor, the scope and the
// element types it was made for. Two tensors with equal element types are interchangeable whatever
// the extents of the operands were (MLX's thin kernel relies on it).
template <unsigned long D, class Scope, class L, class R, class Dest, Role which>
struct OperandLayout {
  using scope = Scope;
  using left_element = L;
  using right_element = R;
  using destination_element = Dest;
  static constexpr mpp::tensor_ops::matmul2d_descriptor desc =
      mpp::tensor_ops::matmul2d_descriptor::unpack(D);
  static constexpr unsigned long packed = D;
  static constexpr Role role = which;
  static constexpr bool is_line = which == Role::kRow || which == Role::kColumn;

  // Shapes as stored: a transposed operand's rows are along k.
  static constexpr int k = desc.k < 0 ? 16 : desc.k;
  static constexpr int rows = which == Role::kLeft     ? (desc.transpose_left ? k : desc.m)
                              : which == Role::kRight  ? (desc.transpose_right ? desc.n : k)
                              : which == Role::kColumn ? desc.n
                                                       : desc.m;
  static constexpr int cols = which == Role::kLeft    ? (desc.transpose_left ? desc.m : k)
                              : which == Role::kRight ? (desc.transpose_right ? k : desc.n)
                                                      : desc.n;
  // relaxed_precision = false with float inputs runs without the matrix unit on M5.
  static constexpr bool grid_on_m5 =
      !desc.relaxed_precision && is_one_of<L, float> && is_one_of<R, float>;
  using Slots = metal::conditional_t<
      is_line, LineSlots<rows, which, grid_on_m5>,
      TileSlots<rows, cols, larger(ScopeThreads<Scope>::value, 32), which, grid_on_m5>>;
};

template <unsigned long D, class Scope, class L, class R, class Dest, Role which, class Element,
          class Coord>
using Cooperative = metal::cooperative_tensor<
    Element, metal::dextents<Coord, which == Role::kRow || which == Role::kColumn ? 1 : 2>,
    OperandLayout<D, Scope, L, R, Dest, which>>;

template <class X>
using element_type_of = metal::remove_cv_t<typename X::element_type>;

template <class X, Role which>
constexpr bool is_operand() {
  if constexpr (is_tensor<X>) {
    return true;
  } else {
    return X::layout::role == which;
  }
}

template <class X, class L, class R, class D>
constexpr bool remembers() {
  if constexpr (is_tensor<X>) {
    return true;
  } else {
    using Layout = typename X::layout;
    return metal::is_same_v<typename Layout::left_element, L> &&
           metal::is_same_v<typename Layout::right_element, R> &&
           metal::is_same_v<typename Layout::destination_element, D>;
  }
}

constexpr bool is_16_or_32(int size) { return size == 16 || size == 32; }
constexpr bool is_thread_size(int size) {
  return size == 1 || size == 2 || size == 4 || (size > 0 && size % 8 == 0);
}

// Rules of the descriptor alone, given the scope and whether an operand has elements below a byte.
template <unsigned long D, class Scope, bool subbyte>
constexpr void check_tile() {
  constexpr auto d = mpp::tensor_ops::matmul2d_descriptor::unpack(D);
  constexpr bool is_thread = ScopeThreads<Scope>::value == 1;
  static_assert(is_thread || (d.m > 0 && d.n > 0 && d.m % 8 == 0 && d.n % 8 == 0),
                "M and N must be multiples of 8 with an execution scope of simdgroups");
  static_assert(is_thread || d.m % 16 == 0 || d.n % 16 == 0,
                "At least one of M and N must be a multiple of 16 with a scope of simdgroups");
  static_assert(!is_thread || (is_thread_size(d.m) && is_thread_size(d.n)),
                "M and N must be 1, 2, 4 or a multiple of 8 with execution_thread");
  static_assert(d.k < 0 || (d.k > 0 && d.k % 16 == 0),
                "a static K must be a multiple of 16; 0 is not dynamic");
  static_assert(d.k < 0 || !subbyte || d.k % 32 == 0,
                "a static K must be a multiple of 32 with elements of less than a byte");
}

// A scaled left operand must not be transposed and a scaled right one must be, so that blocks lie
// along K in both (a guide's reading of the macOS 27 implementation).
template <class X, bool blocks_along_k>
constexpr void check_plane() {
  if constexpr (is_tensor<X>) {
    static_assert(!X::plane::exists || blocks_along_k,
                  "a scaled left operand must not be transposed, a scaled right operand must be");
  }
}

template <class X>
constexpr bool has_plane() {
  if constexpr (is_tensor<X>) {
    return X::plane::exists;
  } else {
    return false;
  }
}

template <unsigned long D, class Scope, class A, class B, class C>
constexpr void check_run() {
  using L = element_type_of<A>;
  using R = element_type_of<B>;
  using Dest = element_type_of<C>;
  constexpr auto d = mpp::tensor_ops::matmul2d_descriptor::unpack(D);
  constexpr bool left_held = !is_tensor<A>, right_held = !is_tensor<B>;
  static_assert(is_operand<A, Role::kLeft>(),
                "the left operand must be a tensor or a left input cooperative tensor");
  static_assert(is_operand<B, Role::kRight>(),
                "the right operand must be a tensor or a right input cooperative tensor");
  static_assert(is_operand<C, Role::kDestination>(),
                "the destination must be a tensor or a destination cooperative tensor");
  static_assert(A::get_rank() == 2 && B::get_rank() == 2 && C::get_rank() == 2,
                "operands must have rank 2");
  static_assert(metal::is_same_v<typename A::index_type, int> &&
                    metal::is_same_v<typename B::index_type, int> &&
                    metal::is_same_v<typename C::index_type, int>,
                "the index type of operands must be int");
  static_assert(!(left_held || right_held) || metal::is_same_v<Scope, metal::execution_simdgroup>,
                "cooperative inputs need execution_simdgroup");
  static_assert(!(left_held || right_held) || d.k >= 0, "cooperative inputs need a static K");
  static_assert(is_tensor<C> || ScopeThreads<Scope>::value > 1,
                "execution_thread takes tensors only");
  static_assert(
      remembers<A, L, R, Dest>() && remembers<B, L, R, Dest>() && remembers<C, L, R, Dest>(),
      "Input types must match cooperative tensor types");
  static_assert(!metal::is_const_v<typename A::element_type> &&
                    !metal::is_const_v<typename B::element_type> &&
                    !metal::is_const_v<typename C::element_type>,
                "const elements are not supported: cast the pointer");
  static_assert(elements_fit<L, R, Dest>(),
                "matmul2d does not support these element types together");
  static_assert(!left_held || !right_held ||
                    (is_16_or_32(d.m) && is_16_or_32(d.n) && is_16_or_32(d.k) &&
                     (d.m == 32 || d.n == 32 || d.k == 32)),
                "with two cooperative inputs M, N and K must be 16 or 32, and one of them 32");
  static_assert(!has_plane<C>(), "the destination cannot have scales");
  check_plane<A, !d.transpose_left>();
  check_plane<B, d.transpose_right>();
  check_tile<D, Scope, is_subbyte<L> || is_subbyte<R>>();
}

}  // namespace emu

EMU_SHIM_END
