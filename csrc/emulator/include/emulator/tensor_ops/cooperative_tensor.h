#pragma once

#include "emulator/metal/simdgroup.h"
#include "emulator/tensor_ops/layout.h"
#include "emulator/tensor_ops/tensor.h"

// metal::cooperative_tensor (<metal_cooperative_tensor> as quoted by public guides): the part of a
// tile that one thread holds. Every thread has an object of its own; operations on the whole tile
// are meetings of the threads of the scope.

EMU_SHIM_BEGIN

namespace emu {

// Marks the constructor that fills the new tensor: it cannot be copied out of the function that
// does.
enum Made { kMade };

}  // namespace emu

namespace metal {

template <class Tensor>
class cooperative_tensor_iterator {
 public:
  using value_type = typename Tensor::value_type;

  cooperative_tensor_iterator(Tensor* owner, int at) : tensor(owner), slot(at) {}
  auto& operator*() const { return (*tensor)[slot]; }
  cooperative_tensor_iterator& operator++() {
    slot++;
    return *this;
  }
  cooperative_tensor_iterator operator++(int) {
    cooperative_tensor_iterator old = *this;
    slot++;
    return old;
  }
  bool operator==(const cooperative_tensor_iterator& other) const { return slot == other.slot; }
  bool operator!=(const cooperative_tensor_iterator& other) const { return slot != other.slot; }
  bool is_valid_element() const { return tensor->is_valid_element(slot); }
  auto get_multidimensional_index() const { return tensor->get_multidimensional_index(slot); }
  int emu_slot() const { return slot; }

 private:
  Tensor* tensor;
  int slot;
};

template <class ElementType, class Extents, class Layout>
class cooperative_tensor {
 public:
  using element_type = ElementType;
  using value_type = ElementType;
  using extents_type = Extents;
  using index_type = typename Extents::index_type;
  using size_type = typename Extents::size_type;
  using rank_type = size_t;
  using thread_index_type = uint16_t;
  using thread_size_type = uint16_t;
  using reference = ElementType&;
  using layout = Layout;
  using iterator = cooperative_tensor_iterator<cooperative_tensor>;
  using const_iterator = cooperative_tensor_iterator<const cooperative_tensor>;
  using Slots = typename Layout::Slots;
  using Map = emu::SlotMap<Slots>;
  static constexpr int kRank = static_cast<int>(Extents::rank());

  // Metal promises no contents; kernels in use rely on neither. NaN (and a pattern for integers)
  // shows a use, zeros are what hardware was seen to give.
  cooperative_tensor() {
    const int byte = emu::policies().fresh_zero          ? 0
                     : emu::is_scalar_float<ElementType> ? 0xff
                                                         : 0xcd;
    __builtin_memset(static_cast<void*>(slots), byte, sizeof(slots));
    if (!emu::policies().fresh_zero) emu::forget(slots, sizeof(slots), "a cooperative tensor");
  }
  template <class Fill>
  cooperative_tensor(emu::Made, Fill fill) : cooperative_tensor() {
    fill(*this);
  }
#if __METAL_VERSION__ < 410
  // Before 27.0 the copies of Apple's header look reversed: they write to their source.
  cooperative_tensor(const cooperative_tensor&) = delete;
  cooperative_tensor& operator=(const cooperative_tensor&) = delete;
#endif

  static constexpr rank_type get_rank() { return Extents::rank(); }
  static thread_size_type get_capacity() {
    return static_cast<thread_size_type>(Map::get().capacity);
  }

  reference operator[](int slot) { return slots[checked(slot)]; }
  const ElementType& operator[](int slot) const { return slots[checked(slot)]; }
  value_type get(int slot) const { return is_valid_element(slot) ? slots[slot] : value_type(); }
  void set(int slot, value_type value) {
    if (is_valid_element(slot)) slots[slot] = value;
  }

  bool is_valid_element(int slot) const {
    const uint32_t element = element_of_slot(slot);
    if (element == emu::kNoElement) return false;
    return kRank == 2 || !emu::policies().row_owner || owns(element);
  }
  bool is_valid_element(const iterator& it) const { return is_valid_element(it.emu_slot()); }
  bool is_valid_element(const const_iterator& it) const { return is_valid_element(it.emu_slot()); }
  bool is_valid_element(const ElementType* element) const {
    return is_valid_element(slot_of(element));
  }

  // [0] counts along dimension 0, the columns. Of an invalid slot: far outside, so that an index
  // used without asking is_valid_element faults.
  array<index_type, Extents::rank()> get_multidimensional_index(int slot) const {
    const uint32_t element = element_of_slot(slot);
    array<index_type, Extents::rank()> index;
    for (size_t r = 0; r < Extents::rank(); r++) index[r] = static_cast<index_type>(1) << 28;
    if (element == emu::kNoElement) return index;
    if constexpr (kRank == 2) {
      index[0] = static_cast<index_type>(element % Slots::kCols);
      index[1] = static_cast<index_type>(element / Slots::kCols);
    } else {
      index[0] = static_cast<index_type>(element);
    }
    return index;
  }
  auto get_multidimensional_index(const iterator& it) const {
    return get_multidimensional_index(it.emu_slot());
  }
  auto get_multidimensional_index(const const_iterator& it) const {
    return get_multidimensional_index(it.emu_slot());
  }
  auto get_multidimensional_index(const ElementType* element) const {
    return get_multidimensional_index(slot_of(element));
  }

  iterator get_iterator(int slot) { return iterator(this, slot); }
  iterator begin() { return iterator(this, 0); }
  iterator end() { return iterator(this, get_capacity()); }
  const_iterator get_iterator(int slot) const { return const_iterator(this, slot); }
  const_iterator begin() const { return const_iterator(this, 0); }
  const_iterator end() const { return const_iterator(this, get_capacity()); }
  iterator get_iterator(const ElementType* element) { return iterator(this, slot_of(element)); }

  // On a reduction result: the slot of the row (or column) that an element of a tile is in. Asserts
  // equal extents and element types, as Apple's header does, nothing else.
  template <class Tile>
  iterator map_iterator(const cooperative_tensor_iterator<Tile>& it) {
    static_assert(kRank == 1 && Tile::kRank == 2,
                  "map_iterator maps from a tile to a reduction result");
    static_assert(is_same_v<typename Tile::value_type, value_type>,
                  "map_iterator: equal element types");
    constexpr bool is_row = Layout::role == emu::Role::kRow;
    static_assert((is_row ? Tile::Slots::kRows : Tile::Slots::kCols) == Slots::kRows,
                  "map_iterator: the tile and the result differ in the shared extent");
    if (emu::policies().incompatible && Tile::layout::packed != Layout::packed) {
      emu::report("map_iterator", "map_iterator although is_iterator_compatible is false");
    }
    const uint32_t element = Tile::Map::get().at(thread(), it.emu_slot());
    if (element == emu::kNoElement) {
      emu::report("map_iterator", "map_iterator of a slot that is not valid");
      return begin();
    }
    const uint32_t line = is_row ? element / Tile::Slots::kCols : element % Tile::Slots::kCols;
    for (int slot = 0; slot < get_capacity(); slot++) {
      if (Map::get().at(thread(), slot) == line) return iterator(this, slot);
    }
    emu::report("map_iterator", "the thread does not hold the row that map_iterator asks for");
    return begin();
  }

  template <class T, class E, class D, class... Tags>
  void load(const tensor<T, E, D, Tags...>& from, int line = __builtin_LINE());
  template <class T, class E, class D, class... Tags>
  void store(const tensor<T, E, D, Tags...>& to, int line = __builtin_LINE()) const;

  // ---- for the emulator's operations ----
  static int thread() {
    return Slots::kThreads > 32 ? static_cast<int>(emu::cur_lane()->index)
                                : static_cast<int>(emu::cur_lane()->lane);
  }
  ElementType slots[Slots::kMost];

 private:
  int checked(int slot) const {
    if (slot >= 0 && slot < Map::get().capacity) return slot;
    emu::report("cooperative_index", "index beyond the capacity of a cooperative tensor");
    return 0;
  }
  uint32_t element_of_slot(int slot) const {
    const Map& map = Map::get();
    return slot >= 0 && slot < map.capacity ? map.at(thread(), slot) : emu::kNoElement;
  }
  int slot_of(const ElementType* element) const { return static_cast<int>(element - slots); }
  bool owns(uint32_t element) const {
    const Map& map = Map::get();
    for (int other = 0; other < thread(); other++) {
      for (int slot = 0; slot < map.capacity; slot++) {
        if (map.at(other, slot) == element) return false;
      }
    }
    return true;
  }
};

}  // namespace metal

EMU_SHIM_END
