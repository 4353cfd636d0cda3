#pragma once

#include "emulator/tensor_ops/operands.h"

// reduce_rows and reduce_columns of mpp::tensor_ops (MPPTensorOpsMatMul2d.h of the macOS 27 SDK).

EMU_SHIM_BEGIN

namespace emu {

// A NaN stays one whatever the operation: what hardware does with it is not known.
template <class T>
inline T reduced(mpp::tensor_ops::reduction_operation operation, T a, T b) {
  using mpp::tensor_ops::reduction_operation;
  if (operation == reduction_operation::sum || a != a || b != b) return static_cast<T>(a + b);
  if (operation == reduction_operation::max) return a < b ? b : a;
  return b < a ? b : a;
}

template <class Source, class Destination>
struct ReductionSlot {
  const Source* from;
  Destination* to;
  mpp::tensor_ops::reduction_operation operation;
  typename Source::value_type identity;
};

template <class Source, class Destination>
void reduce_tile(void** slots, int n, int n_active) {
  require_lanes(n_active, kLanes);
  using Slot = ReductionSlot<Source, Destination>;
  using Value = typename Source::value_type;
  // Sums of 16-bit elements are kept in float, like those of products.
  using Sum = metal::conditional_t<metal::is_same_v<Value, int32_t>, int32_t, float>;
  constexpr bool by_row = Destination::layout::role == Role::kRow;
  constexpr uint32_t cols = Source::Slots::kCols;
  Sum lines[Destination::Slots::kRows];
  const auto& from_map = Source::Map::get();
  const auto& to_map = Destination::Map::get();
  bool started = false;
  for (int thread = 0; thread < n; thread++) {
    if (slots[thread] == nullptr) continue;
    const auto* slot = static_cast<const Slot*>(slots[thread]);
    for (int i = 0; !started && i < Destination::Slots::kRows; i++) {
      lines[i] = static_cast<Sum>(slot->identity);
    }
    started = true;
    for (int i = 0; i < from_map.capacity; i++) {
      const uint32_t element = from_map.at(thread, i);
      if (element == kNoElement) continue;
      Sum& line = lines[by_row ? element / cols : element % cols];
      line = reduced(slot->operation, line, static_cast<Sum>(slot->from->slots[i]));
    }
  }
  for (int thread = 0; thread < n; thread++) {
    if (slots[thread] == nullptr) continue;
    const auto* slot = static_cast<const Slot*>(slots[thread]);
    for (int i = 0; i < to_map.capacity; i++) {
      const uint32_t element = to_map.at(thread, i);
      if (element != kNoElement) slot->to->slots[i] = static_cast<Value>(lines[element]);
    }
  }
}

template <Role role, class Source, class Destination, class T>
inline void reduce(const Source& source, Destination& destination,
                   mpp::tensor_ops::reduction_operation operation, T identity, const char* what,
                   int line) {
  using From = typename Source::layout;
  using To = typename Destination::layout;
  static_assert(From::role == Role::kDestination,
                "the source of a reduction is a destination cooperative tensor");
  static_assert(To::role == role, "the destination is not of the kind for this reduction");
  static_assert(metal::is_same_v<typename From::scope, metal::execution_simdgroup>,
                "reductions need execution_simdgroup");
  static_assert(From::packed == To::packed &&
                    metal::is_same_v<typename From::left_element, typename To::left_element> &&
                    metal::is_same_v<typename From::right_element, typename To::right_element>,
                "source and destination must come from the same operation and operands");
  ReductionSlot<Source, Destination> slot{&source, &destination, operation, identity};
  rendezvous(kSimdgroup, reduce_tile<Source, Destination>, &slot, what, line);
}

}  // namespace emu

namespace mpp {
namespace tensor_ops {

// The identity is that of a sum unless given, whatever the operation is: a max of negative rows is
// then 0, as in Apple's header. The destination is overwritten.
template <class T, class E, class From, class F, class To>
inline void reduce_rows(metal::cooperative_tensor<T, E, From>& source,
                        metal::cooperative_tensor<T, F, To>& destination,
                        reduction_operation operation = reduction_operation::sum,
                        T identity = reduction_operation_identity<T>::sum_identity,
                        int line = __builtin_LINE()) {
  emu::reduce<emu::Role::kRow>(source, destination, operation, identity, "reduce_rows", line);
}
template <class T, class E, class From, class F, class To>
inline void reduce_columns(metal::cooperative_tensor<T, E, From>& source,
                           metal::cooperative_tensor<T, F, To>& destination,
                           reduction_operation operation = reduction_operation::sum,
                           T identity = reduction_operation_identity<T>::sum_identity,
                           int line = __builtin_LINE()) {
  emu::reduce<emu::Role::kColumn>(source, destination, operation, identity, "reduce_columns", line);
}

// Whether iterators of the tile map to the reduction result. Between tensors of one operation they
// do; otherwise the driver answers, and kernels need the other branch.
template <class T, class E, class From, class U, class F, class To>
inline bool is_iterator_compatible(const metal::cooperative_tensor<T, E, From>&,
                                   const metal::cooperative_tensor<U, F, To>&) {
  static_assert(From::role == emu::Role::kDestination && To::is_line,
                "is_iterator_compatible takes a destination and a reduction result");
  constexpr int shared = To::role == emu::Role::kRow ? From::rows : From::cols;
  if (!metal::is_same_v<T, U> || shared != To::rows) return false;
  return From::packed == To::packed || !emu::policies().incompatible;
}

}  // namespace tensor_ops
}  // namespace mpp

EMU_SHIM_END
