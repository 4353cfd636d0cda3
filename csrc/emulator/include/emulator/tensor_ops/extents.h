#pragma once

#include "emulator/metal/array.h"

// metal::extents and dextents (specification 4, section 2.20.1). Dimension 0 is innermost.

EMU_SHIM_BEGIN

namespace metal {

constexpr size_t dynamic_extent = numeric_limits<size_t>::max();

template <class IndexType, size_t... E>
class extents {
  static_assert(__is_integral(IndexType), "the index type of extents is an integer");

 public:
  using index_type = IndexType;
  using size_type = __make_unsigned(IndexType);
  using rank_type = size_t;

  static constexpr rank_type rank() { return sizeof...(E); }
  static constexpr rank_type rank_dynamic() { return ((E == dynamic_extent) + ... + 0); }
  static constexpr size_t static_extent(rank_type r) {
    constexpr size_t all[] = {E..., 0};
    return all[r];
  }

  constexpr extents()
      : sizes{(E == dynamic_extent ? IndexType(0) : static_cast<IndexType>(E))...} {}
  // The dynamic sizes only, or all of them.
  template <class... A,
            enable_if_t<(sizeof...(A) == rank() || sizeof...(A) == rank_dynamic()) &&
                            sizeof...(A) != 0 && (__is_convertible(A, IndexType) && ...),
                        int> = 0>
  constexpr explicit extents(A... values) : extents() {
    const IndexType given[] = {static_cast<IndexType>(values)...};
    for (size_t r = 0, next = 0; r < rank(); r++) {
      const bool listed = sizeof...(A) == rank() || static_extent(r) == dynamic_extent;
      if (listed) sizes[r] = given[next++];
    }
  }

  constexpr index_type extent(rank_type r) const { return sizes[r]; }

 private:
  IndexType sizes[sizeof...(E) == 0 ? 1 : sizeof...(E)];
};

}  // namespace metal

namespace emu {

template <class I, size_t rank, size_t... E>
struct DynamicExtents : DynamicExtents<I, rank - 1, E..., metal::dynamic_extent> {};
template <class I, size_t... E>
struct DynamicExtents<I, 0, E...> {
  using type = metal::extents<I, E...>;
};

}  // namespace emu

namespace metal {

template <class IndexType, size_t Rank>
using dextents = typename emu::DynamicExtents<IndexType, Rank>::type;

}  // namespace metal

EMU_SHIM_END
