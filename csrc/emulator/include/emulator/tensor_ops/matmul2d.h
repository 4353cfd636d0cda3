#pragma once

#include "emulator/tensor_ops/compute.h"
#include "emulator/tensor_ops/conversions.h"

// mpp::tensor_ops::matmul2d (MPPTensorOpsMatMul2d.h of the macOS 27 SDK).

EMU_SHIM_BEGIN

namespace mpp {
namespace tensor_ops {

template <unsigned long D, class Scope, class... Args>
class matmul2d {
  template <emu::Role role, class Element, class L, class R, class Dest, class Coord>
  using Held = emu::Cooperative<D, Scope, L, R, Dest, role, Element, Coord>;

 public:
  using scope = Scope;
  static constexpr matmul2d_descriptor descriptor = matmul2d_descriptor::unpack(D);

  // Inputs are asked for by element types, destinations by the types of the operands.
  template <class L, class R, class Dest, class Coord = int>
  auto get_left_input_cooperative_tensor() const {
    check_input<L, L, R, Dest>();
    return Held<emu::Role::kLeft, L, L, R, Dest, Coord>();
  }
  template <class L, class R, class Dest, class Coord = int>
  auto get_right_input_cooperative_tensor() const {
    check_input<R, L, R, Dest>();
    return Held<emu::Role::kRight, R, L, R, Dest, Coord>();
  }
  template <class Left, class Right, class Element, class Coord = int>
  auto get_destination_cooperative_tensor() const {
    return made<emu::Role::kDestination, Left, Right, Element, Coord>();
  }
  template <class Left, class Right, class Element, class Coord = int>
  auto get_row_reduction_destination_cooperative_tensor() const {
    return made<emu::Role::kRow, Left, Right, Element, Coord>();
  }
  template <class Left, class Right, class Element, class Coord = int>
  auto get_column_reduction_destination_cooperative_tensor() const {
    return made<emu::Role::kColumn, Left, Right, Element, Coord>();
  }

  // A destination of another operation as an input of this one. The registers fit or not at run
  // time; kernels need the other branch too.
  template <class L, class R, class Dest, class T, class E, class Layout>
  bool is_compatible_as_left_input(const metal::cooperative_tensor<T, E, Layout>&) const {
    check_conversion_left<L, R, Dest, T, Layout>();
    return !emu::policies().incompatible;
  }
  template <class L, class R, class Dest, class T, class E, class Layout>
  bool is_compatible_as_right_input(const metal::cooperative_tensor<T, E, Layout>&) const {
    check_conversion_right<L, R, Dest, T, Layout>();
    return !emu::policies().incompatible;
  }
  template <class L, class R, class Dest, class Coord = int, class T, class E, class Layout>
  auto get_left_input_cooperative_tensor(const metal::cooperative_tensor<T, E, Layout>& source,
                                         int line = __builtin_LINE()) const {
    check_conversion_left<L, R, Dest, T, Layout>();
    return emu::converted<Held<emu::Role::kLeft, L, L, R, Dest, Coord>>(source, line);
  }
  template <class L, class R, class Dest, class Coord = int, class T, class E, class Layout>
  auto get_right_input_cooperative_tensor(const metal::cooperative_tensor<T, E, Layout>& source,
                                          int line = __builtin_LINE()) const {
    check_conversion_right<L, R, Dest, T, Layout>();
    return emu::converted<Held<emu::Role::kRight, R, L, R, Dest, Coord>>(source, line);
  }

  // Operands are lvalues, as in Apple's declaration: a slice needs a name.
  template <class A, class B, class C>
  void run(A& left, B& right, C& destination, int line = __builtin_LINE()) const {
    using Left = metal::remove_cv_t<A>;
    using Right = metal::remove_cv_t<B>;
    using Dest = metal::remove_cv_t<C>;
    emu::check_run<D, Scope, Left, Right, Dest>();
    emu::RunSlot<Left, Right, Dest> slot{&left, &right, const_cast<Dest*>(&destination)};
    constexpr int threads = emu::ScopeThreads<Scope>::value;
    using Run = emu::Run<D, threads, Left, Right, Dest>;
    if constexpr (threads == 1) {
      void* alone = &slot;
      Run::compute(&alone, 1, 1);
    } else {
      // N simdgroups are all simdgroups of the threadgroup; 1 is also any single one.
      if (threads > 32 && emu::cur_tg()->simdgroups * 32 != static_cast<uint32_t>(threads)) {
        emu::fault("execution_scope",
                   "execution_simdgroups<N> needs N to be the simdgroups launched");
      }
      emu::rendezvous(emu::scope_of_threads<threads>, Run::compute, &slot, "matmul2d::run", line);
    }
  }

 private:
  template <class Element, class L, class R, class Dest>
  static constexpr void check_input() {
    static_assert(metal::is_same_v<Scope, metal::execution_simdgroup>,
                  "cooperative inputs need execution_simdgroup");
    static_assert(descriptor.k >= 0, "cooperative inputs need a static K");
    static_assert(!emu::is_packed_format<Element>,
                  "the element type of a cooperative input cannot be a format type");
    static_assert(emu::elements_fit<L, R, Dest>(),
                  "matmul2d does not support these element types together");
  }
  template <emu::Role role, class Left, class Right, class Element, class Coord>
  static auto made() {
    using L = emu::element_type_of<Left>;
    using R = emu::element_type_of<Right>;
    static_assert(emu::is_one_of<Element, half, bfloat, float, int32_t>,
                  "the elements of a destination are half, bfloat, float or int");
    static_assert(
        role == emu::Role::kDestination || metal::is_same_v<Scope, metal::execution_simdgroup>,
        "reductions need execution_simdgroup");
    static_assert(emu::ScopeThreads<Scope>::value > 1,
                  "execution_thread has no cooperative tensors");
    return Held<role, Element, L, R, Element, Coord>();
  }

  template <class Element, class L, class R, class Dest, class T, class Layout>
  static constexpr void check_conversion() {
    check_input<Element, L, R, Dest>();
    static_assert(Layout::role == emu::Role::kDestination,
                  "only the destination of a matmul2d converts to an input");
    static_assert(metal::is_same_v<typename Layout::scope, metal::execution_simdgroup>,
                  "conversions need execution_simdgroup in both operations");
    static_assert(metal::is_same_v<Element, T>, "conversions keep the element type");
  }
  template <class L, class R, class Dest, class T, class Layout>
  static constexpr void check_conversion_left() {
    check_conversion<L, L, R, Dest, T, Layout>();
    static_assert(Layout::desc.m == descriptor.m && Layout::desc.n == descriptor.k,
                  "a left input has the shape M x K of its operation");
    static_assert(!descriptor.transpose_left, "a converted left input cannot be transposed");
  }
  template <class L, class R, class Dest, class T, class Layout>
  static constexpr void check_conversion_right() {
    check_conversion<R, L, R, Dest, T, Layout>();
    static_assert(Layout::desc.m == descriptor.k && Layout::desc.n == descriptor.n,
                  "a right input has the shape K x N of its operation");
    static_assert(!descriptor.transpose_right, "a converted right input cannot be transposed");
  }
};

template <class Op, class L, class R, class Dest, class Coord = int>
using cooperative_tensor_left_input_t =
    decltype(metal::declval<Op>().template get_left_input_cooperative_tensor<L, R, Dest, Coord>());
template <class Op, class L, class R, class Dest, class Coord = int>
using cooperative_tensor_right_input_t =
    decltype(metal::declval<Op>().template get_right_input_cooperative_tensor<L, R, Dest, Coord>());
template <class Op, class Left, class Right, class Element, class Coord = int>
using cooperative_tensor_destination_t =
    decltype(metal::declval<Op>()
                 .template get_destination_cooperative_tensor<Left, Right, Element, Coord>());
template <class Op, class Left, class Right, class Element, class Coord = int>
using cooperative_tensor_row_reduction_destination_t =
    decltype(metal::declval<Op>()
                 .template get_row_reduction_destination_cooperative_tensor<Left, Right, Element,
                                                                            Coord>());
template <class Op, class Left, class Right, class Element, class Coord = int>
using cooperative_tensor_column_reduction_destination_t =
    decltype(metal::declval<Op>()
                 .template get_column_reduction_destination_cooperative_tensor<Left, Right, Element,
                                                                               Coord>());

}  // namespace tensor_ops
}  // namespace mpp

EMU_SHIM_END
