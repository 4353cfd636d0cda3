#pragma once

#include "emulator/tensor_ops/operands.h"

// A destination of one matmul2d as an input of another: the same elements, in the input's layout.

EMU_SHIM_BEGIN

namespace emu {

template <class From, class To>
struct ConversionSlot {
  const From* from;
  To* to;
};

template <class From, class To>
void convert(void** slots, int n, int n_active) {
  require_lanes(n_active, kLanes);
  using Slot = ConversionSlot<From, To>;
  static_assert(From::Slots::kRows == To::Slots::kRows && From::Slots::kCols == To::Slots::kCols);
  typename From::value_type tile[From::Slots::kRows * From::Slots::kCols];
  const auto& from_map = From::Map::get();
  const auto& to_map = To::Map::get();
  for (int thread = 0; thread < n; thread++) {
    if (slots[thread] == nullptr) continue;
    const auto* slot = static_cast<const Slot*>(slots[thread]);
    for (int i = 0; i < from_map.capacity; i++) {
      const uint32_t element = from_map.at(thread, i);
      if (element != kNoElement) tile[element] = slot->from->slots[i];
    }
  }
  for (int thread = 0; thread < n; thread++) {
    if (slots[thread] == nullptr) continue;
    const auto* slot = static_cast<const Slot*>(slots[thread]);
    for (int i = 0; i < to_map.capacity; i++) {
      const uint32_t element = to_map.at(thread, i);
      if (element != kNoElement) slot->to->slots[i] = tile[element];
    }
  }
}

template <class To, class From>
inline To converted(const From& source, int line) {
  return To(kMade, [&](To& to) {
    if (policies().incompatible) {
      report("conversion", "a cooperative tensor is converted although is_compatible_as_ is false");
      return;
    }
    ConversionSlot<From, To> slot{&source, &to};
    rendezvous(kSimdgroup, convert<From, To>, &slot, "get_input_cooperative_tensor", line);
  });
}

}  // namespace emu

EMU_SHIM_END
