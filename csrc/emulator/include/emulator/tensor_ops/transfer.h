#pragma once

#include "emulator/tensor_ops/cooperative_tensor.h"

// load and store of cooperative tensors, and what they share with matmul2d: looking at an operand
// in memory with its edges in mind.

EMU_SHIM_BEGIN

namespace emu {

// The scope that Metal's execution_simdgroups<n> meets in: its own simdgroup, or the threadgroup.
template <int threads>
constexpr Scope scope_of_threads = threads > 32 ? kThreadgroup : kSimdgroup;

enum class Edge { kInside, kOutside, kBroken };

// Inside; outside dynamic extents, which operations check; or where static extents promise an
// element that is not there (specification 4, section 2.20.2.2: undefined, operations do not
// check).
template <class Tensor>
inline Edge edge(const Tensor& tensor, const long* at) {
  if (tensor.inside(at)) return tensor.backed(at) ? Edge::kInside : Edge::kBroken;
  for (size_t r = 0; r < Tensor::get_rank(); r++) {
    const bool is_static = Tensor::get_static_extent(r) != metal::dynamic_extent;
    if (is_static && at[r] >= static_cast<long>(tensor.get_extent(r))) return Edge::kBroken;
  }
  return Edge::kOutside;
}
inline void report_broken() {
  report("tensor_extents",
         "static extents of a tensor are wrong: they reach past the memory, or the operation past "
         "them");
}

template <class Tensor, int threads>
inline void check_same_tensor(void** slots, int n, int n_active) {
  require_lanes(n_active, threads);
  const Tensor* first = nullptr;
  for (int i = 0; i < n; i++) {
    if (slots[i] == nullptr) continue;
    const auto* tensor = static_cast<const Tensor*>(slots[i]);
    if (first == nullptr) first = tensor;
    if (!tensor->emu_same(*first)) {
      report("tensor_not_uniform",
             "the threads of a scope name different tensors for one operation");
      return;
    }
  }
}

// Dimension 0 is the column; a rank-1 tensor has only its index.
template <int rank, class Slots>
inline void position(uint32_t element, long* at) {
  if constexpr (rank == 2) {
    at[0] = static_cast<long>(element % Slots::kCols);
    at[1] = static_cast<long>(element / Slots::kCols);
  } else {
    at[0] = static_cast<long>(element);
  }
}

template <class Cooperative, class Tensor>
struct LineStore {
  const Cooperative* from;
  const Tensor* to;
};
// Several lanes hold a row: written once, and they have to agree.
template <class Cooperative, class Tensor>
void store_line(void** slots, int n, int n_active) {
  require_lanes(n_active, kLanes);
  using Slots = typename Cooperative::Slots;
  typename Cooperative::value_type values[Slots::kRows];
  bool known[Slots::kRows] = {};
  const Tensor* to = nullptr;
  const auto& map = Cooperative::Map::get();
  for (int lane = 0; lane < n; lane++) {
    if (slots[lane] == nullptr) continue;
    const auto* slot = static_cast<const LineStore<Cooperative, Tensor>*>(slots[lane]);
    to = slot->to;
    for (int i = 0; i < map.capacity; i++) {
      const uint32_t row = map.at(lane, i);
      if (row == kNoElement) continue;
      const auto value = slot->from->slots[i];
      if (known[row] && value == value && !(values[row] == value)) {
        report("row_copies", "the threads that hold a row of a reduction result disagree about it");
      }
      values[row] = value;
      known[row] = true;
    }
  }
  for (long row = 0; row < Slots::kRows; row++) {
    if (known[row] && to->inside(&row)) to->emu_write(&row, values[row]);
  }
}

}  // namespace emu

namespace metal {

// Element types must be identical: there is no conversion (a SFINAE rule of Apple's header). A
// dimension of size 1 in the source is repeated; other sizes must match the tile (specification 4,
// section 2.20.3). What an edge tile gets where they do not is unknown: what a fresh tensor holds.
template <class ElementType, class Extents, class Layout>
template <class T, class E, class D, class... Tags>
void cooperative_tensor<ElementType, Extents, Layout>::load(const tensor<T, E, D, Tags...>& from,
                                                            int line) {
  using From = tensor<T, E, D, Tags...>;
  static_assert(is_same_v<typename From::value_type, ElementType>,
                "load does not convert elements");
  static_assert(From::kRank == kRank, "load needs a tensor of the rank of the cooperative tensor");
  emu::rendezvous(emu::scope_of_threads<Slots::kThreads>,
                  emu::check_same_tensor<From, Slots::kThreads>, const_cast<From*>(&from),
                  "cooperative_tensor::load", line);
  const Map& map = Map::get();
  const cooperative_tensor fresh;
  bool broken = false;
  for (int slot = 0; slot < map.capacity; slot++) {
    const uint32_t element = map.at(thread(), slot);
    if (element == emu::kNoElement) continue;
    long at[kRank];
    emu::position<kRank, Slots>(element, at);
    for (int r = 0; r < kRank; r++) {
      if (from.get_extent(static_cast<size_t>(r)) == 1) at[r] = 0;
    }
    const emu::Edge where = emu::edge(from, at);
    broken = broken || where == emu::Edge::kBroken;
    slots[slot] = where == emu::Edge::kInside ? from.emu_read(at) : fresh.slots[slot];
  }
  if (broken) emu::report_broken();
}

// Elements beyond dynamic extents are dropped (MLX and ggml rely on it); static extents are a
// promise.
template <class ElementType, class Extents, class Layout>
template <class T, class E, class D, class... Tags>
void cooperative_tensor<ElementType, Extents, Layout>::store(const tensor<T, E, D, Tags...>& to,
                                                             int line) const {
  using To = tensor<T, E, D, Tags...>;
  static_assert(is_same_v<typename To::value_type, ElementType>, "store does not convert elements");
  static_assert(To::kRank == kRank, "store needs a tensor of the rank of the cooperative tensor");
  static_assert(!is_const_v<T>, "store needs a tensor of elements that are not const");
  if constexpr (kRank == 1) {
    emu::LineStore<cooperative_tensor, To> slot{this, &to};
    emu::rendezvous(emu::kSimdgroup, emu::store_line<cooperative_tensor, To>, &slot,
                    "cooperative_tensor::store", line);
  } else {
    emu::rendezvous(emu::scope_of_threads<Slots::kThreads>,
                    emu::check_same_tensor<To, Slots::kThreads>, const_cast<To*>(&to),
                    "cooperative_tensor::store", line);
    const Map& map = Map::get();
    bool broken = false;
    for (int slot = 0; slot < map.capacity; slot++) {
      const uint32_t element = map.at(thread(), slot);
      if (element == emu::kNoElement) continue;
      long at[kRank];
      emu::position<kRank, Slots>(element, at);
      const emu::Edge where = emu::edge(to, at);
      broken = broken || where == emu::Edge::kBroken;
      if (where == emu::Edge::kInside) to.emu_write(at, slots[slot]);
    }
    if (broken) emu::report_broken();
  }
}

}  // namespace metal

EMU_SHIM_END
