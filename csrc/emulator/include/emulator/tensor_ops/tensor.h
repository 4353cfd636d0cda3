#pragma once

#include "emulator/tensor_ops/extents.h"
#include "emulator/tensor_ops/formats.h"

// metal::tensor (specification 4, section 2.20.2; <metal_tensor> as quoted by public guides): a
// view of memory with extents and strides in elements, dimension 0 innermost.

EMU_SHIM_BEGIN

namespace metal {

struct tensor_handle {};
struct tensor_inline {};
struct tensor_offset {};

#if __METAL_VERSION__ >= 410
struct tensor_plane_scales {};
// A plane of one scale a block of `Block` elements; the tag is also what the constructor of a
// tensor takes: plane(pointer).
template <class Kind, class Scale, int... Block>
struct tensor_blockwise {
  const uint8_t* data = nullptr;
  tensor_blockwise() = default;
  explicit tensor_blockwise(const uint8_t* scales) : data(scales) {}
};
#endif

}  // namespace metal

namespace emu {

struct NoPlane {
  static constexpr bool exists = false;
};
template <class... Tags>
struct PlaneOf : NoPlane {
  using type = NoPlane;
};
template <class First, class... Rest>
struct PlaneOf<First, Rest...> : PlaneOf<Rest...> {};

#if __METAL_VERSION__ >= 410
template <class Kind, class Scale, int... Block, class... Rest>
struct PlaneOf<metal::tensor_blockwise<Kind, Scale, Block...>, Rest...> {
  static constexpr bool exists = true;
  static constexpr int blocks[] = {Block...};
  using type = metal::tensor_blockwise<Kind, Scale, Block...>;
  static_assert(__is_same(Scale, metal::metal_fp8_ue8m0_format),
                "scales are metal_fp8_ue8m0_format");
  // 32 along dimension 0 and 1 along the others (a guide's reading of the 27 implementation).
  static_assert(blocks[0] == 32, "a scale covers 32 elements of dimension 0");
};
#endif

template <class T>
constexpr bool is_tensor = false;

}  // namespace emu

namespace metal {

template <class ElementType, class Extents, class Descriptor = tensor_handle, class... Tags>
class tensor {
 public:
  using element_type = ElementType;
  using value_type = remove_cv_t<ElementType>;
  using extents_type = Extents;
  using index_type = typename Extents::index_type;
  using size_type = typename Extents::size_type;
  using rank_type = size_t;
  using storage_type = typename emu::StorageOf<ElementType>::type;
  using data_handle_type = storage_type*;
  using reference = storage_type&;
  using plane = emu::PlaneOf<Tags...>;
  static constexpr int kRank = static_cast<int>(Extents::rank());
  static constexpr bool kPacked = emu::is_packed_format<ElementType>;

  tensor() = default;
  tensor(storage_type* pointer, const Extents& sizes) : tensor(pointer, sizes, packed(sizes)) {}
  template <class S>
  tensor(storage_type* pointer, const Extents& sizes, const array<S, Extents::rank()>& steps)
      : base(pointer) {
    for (int r = 0; r < kRank; r++) {
      size[r] = limit[r] = whole[r] = static_cast<long>(sizes.extent(static_cast<size_t>(r)));
      stride[r] = static_cast<long>(steps[static_cast<size_t>(r)]);
      start[r] = 0;
    }
    if (stride[0] != 1) {
      emu::report("tensor_stride", "the innermost stride of a tensor is not 1: never seen to work");
    }
  }
  template <class S, class P,
            enable_if_t<is_same_v<P, typename plane::type> && plane::exists, int> = 0>
  tensor(storage_type* pointer, const Extents& sizes, const array<S, Extents::rank()>& steps,
         P with)
      : tensor(pointer, sizes, steps) {
    scales = with;
  }

  // The host's tensor in a buffer.
  static tensor emu_bound(void* data, int index) {
    static_assert(is_same_v<Descriptor, tensor_handle> && !plane::exists,
                  "a kernel argument is a tensor_handle without planes");
    constexpr long pack = kPacked ? 8 / emu::Format<value_type>::bits : 1;
    const emu::TensorShape& shape = emu::tensor_shape(index);
    check(index, "rank", kRank, shape.rank);
    check(index, "element bytes", sizeof(storage_type), shape.element_bytes);
    const bool outermost_first = kRank > 2 && emu::policies().handle_outermost != 0;
    tensor result;
    result.base = static_cast<storage_type*>(data);
    for (int r = 0; r < kRank; r++) {
      const int from = outermost_first ? r : kRank - 1 - r;
      const bool innermost = from == kRank - 1;
      const long extent = shape.extents[from] * (innermost ? pack : 1);
      const size_t fixed = Extents::static_extent(static_cast<size_t>(r));
      if (fixed != dynamic_extent) check(index, "static extent", static_cast<long>(fixed), extent);
      result.size[r] = result.limit[r] = result.whole[r] = extent;
      result.stride[r] = shape.strides[from] * (innermost ? 1 : pack);
    }
    return result;
  }

  static constexpr rank_type get_rank() { return Extents::rank(); }
  static constexpr size_t get_static_extent(rank_type r) { return Extents::static_extent(r); }
  index_type get_extent(rank_type r) const { return static_cast<index_type>(size[r]); }
  index_type get_stride(rank_type r) const { return static_cast<index_type>(stride[r]); }
#if __METAL_VERSION__ >= 410
  size_t get_stride_bytes(rank_type r) const {
    const long bits =
        kPacked ? emu::Format<value_type>::bits : 8 * static_cast<long>(sizeof(storage_type));
    return static_cast<size_t>(stride[r] * bits / 8);
  }
#endif

  // Unchecked in Metal: an index beyond the extents is reported here.
  reference operator[](const array<index_type, Extents::rank()>& index) const {
    long at[kRank];
    for (int r = 0; r < kRank; r++) at[r] = static_cast<long>(index[static_cast<size_t>(r)]);
    return element(at);
  }
  reference operator[](const emu::Subscripts<Extents::rank()>& index) const {
    long at[kRank];
    for (int r = 0; r < kRank; r++) at[r] = index.at[r];
    return element(at);
  }
  reference operator[](index_type index) const {
    static_assert(kRank == 1, "as many indices as the tensor has dimensions");
    long at[] = {static_cast<long>(index)};
    return element(at);
  }
  template <class... I, enable_if_t<sizeof...(I) == kRank, int> = 0>
  value_type load(I... index) const {
    long at[] = {static_cast<long>(index)...};
    order(at);
    return inside(at) ? emu_read(at) : value_type();
  }
  template <class... I, enable_if_t<sizeof...(I) == kRank, int> = 0>
  void store(value_type value, I... index) const {
    long at[] = {static_cast<long>(index)...};
    order(at);
    if (inside(at)) emu_write(at, value);
  }

  // The rest of the tensor from an offset: what remains, not a tile.
  template <class... O,
            enable_if_t<sizeof...(O) == kRank && (__is_convertible(O, index_type) && ...), int> = 0>
  auto slice(O... offsets) const {
    return sliced<dextents<index_type, Extents::rank()>>(offsets...);
  }
  // The same with extents that are promised to be inside, where they are not dynamic_extent.
  template <size_t... E, class... O,
            enable_if_t<sizeof...(E) == kRank && sizeof...(O) == kRank, int> = 0>
  auto slice(O... offsets) const {
    return sliced<metal::extents<index_type, E...>>(offsets...);
  }

  Extents extents() const { return make_extents(make_index<kRank>()); }

  // ---- for the emulator's operations ----
  bool inside(const long* at) const {
    for (int r = 0; r < kRank; r++) {
      if (at[r] < 0 || at[r] >= size[r]) return false;
    }
    return true;
  }
  // Whether the memory behind a slice has the element: false where a promised extent was too large.
  bool backed(const long* at) const {
    for (int r = 0; r < kRank; r++) {
      if (at[r] >= limit[r]) return false;
    }
    return true;
  }
  auto emu_read(const long* at) const {
    const long n = offset(at);
    if constexpr (kPacked) {
      constexpr int bits = emu::Format<value_type>::bits;
      const uint8_t* byte = base + n * bits / 8;
      emu::account(byte, 1, false);
      const auto value =
          emu::Format<value_type>::decode(static_cast<uint8_t>(*byte >> n * bits % 8));
#if __METAL_VERSION__ >= 410
      if constexpr (plane::exists) {
        return static_cast<float>(value) * scale(at);
      } else
#endif
      {
        return value;
      }
    } else {
      emu::account(base + n, sizeof(storage_type), false);
      return static_cast<value_type>(base[n]);
    }
  }
  template <class V>
  void emu_write(const long* at, V value) const {
    static_assert(!kPacked, "packed formats are inputs only");
    storage_type* element = base + offset(at);
    emu::account(element, sizeof(storage_type), true);
    *element = static_cast<value_type>(value);
  }
  bool emu_same(const tensor& other) const {
    bool same = base == other.base;
    for (int r = 0; r < kRank; r++) {
      same = same && size[r] == other.size[r] && stride[r] == other.stride[r] &&
             start[r] == other.start[r];
    }
    return same;
  }

 private:
  template <class E, class X, class D, class... T>
  friend class tensor;

  static void check(int index, const char* what, long wanted, long got) {
    if (wanted != got) emu::wrong_tensor(index, what, wanted, got);
  }
  // Which index counts along which dimension, of elements of handles.
  static void order(long* at) {
    if (!is_same_v<Descriptor, tensor_handle> || emu::policies().subscript_outermost == 0) return;
    for (int r = 0; r < kRank / 2; r++) {
      const long swapped = at[r];
      at[r] = at[kRank - 1 - r];
      at[kRank - 1 - r] = swapped;
    }
  }
  reference element(long* at) const {
    static_assert(!kPacked, "elements of packed formats have no reference");
    order(at);
    if (!inside(at)) emu::report("tensor_index", "operator[] beyond the extents of a tensor");
    return base[offset(at)];
  }

  static array<long, Extents::rank()> packed(const Extents& sizes) {
    array<long, Extents::rank()> steps;
    long step = 1;
    for (size_t r = 0; r < Extents::rank(); r++) {
      steps[r] = step;
      step *= static_cast<long>(sizes.extent(r));
    }
    return steps;
  }
  long offset(const long* at) const {
    long n = 0;
    for (int r = 0; r < kRank; r++) n += (start[r] + at[r]) * stride[r];
    return n;
  }
#if __METAL_VERSION__ >= 410
  // One byte a block, rows of whole[0] / 32 (an MXFP8 kernel for M5 in a public repository).
  float scale(const long* at) const {
    long n = (start[0] + at[0]) / 32, step = whole[0] / 32;
    for (int r = 1; r < kRank; r++) {
      n += (start[r] + at[r]) * step;
      step *= whole[r];
    }
    emu::account(scales.data + n, 1, false);
    return emu::Format<metal_fp8_ue8m0_format>::decode(scales.data[n]);
  }
#endif

  template <class E, class... O>
  auto sliced(O... offsets) const {
    using Tag = conditional_t<is_same_v<Descriptor, tensor_handle>,
                              tensor<ElementType, E, tensor_handle, tensor_offset, Tags...>,
                              tensor<ElementType, E, Descriptor, Tags...>>;
    const long by[] = {static_cast<long>(offsets)...};
    Tag result;
    result.base = base;
    if constexpr (plane::exists) result.scales = scales;
    for (int r = 0; r < kRank; r++) {
      const size_t fixed = E::static_extent(static_cast<size_t>(r));
      result.start[r] = start[r] + by[r];
      result.stride[r] = stride[r];
      result.whole[r] = whole[r];
      result.limit[r] = limit[r] - by[r];
      result.size[r] = fixed == dynamic_extent ? size[r] - by[r] : static_cast<long>(fixed);
    }
    return result;
  }

  template <int... I>
  struct Index {};
  template <int n, int... I>
  static auto make_index() {
    if constexpr (n == 0) {
      return Index<I...>{};
    } else {
      return make_index<n - 1, n - 1, I...>();
    }
  }
  template <int... I>
  Extents make_extents(Index<I...>) const {
    return Extents(static_cast<index_type>(size[I])...);
  }

  storage_type* base = nullptr;
  long start[kRank] = {}, size[kRank] = {}, stride[kRank] = {};
  long limit[kRank] = {};  // extents of the memory from `start`, which promised extents may exceed
  long whole[kRank] = {};  // extents of the tensor that was sliced
  typename plane::type scales;
};

template <class T, class I, size_t... E>
tensor(T*, extents<I, E...>) -> tensor<T, extents<I, E...>, tensor_inline>;
template <class T, class I, size_t... E, class S>
tensor(T*, extents<I, E...>, array<S, sizeof...(E)>) -> tensor<T, extents<I, E...>, tensor_inline>;

template <class T>
constexpr bool is_tensor_handle_v = false;
template <class T, class E, class... Tags>
constexpr bool is_tensor_handle_v<tensor<T, E, tensor_handle, Tags...>> = true;
template <class T>
constexpr bool is_tensor_inline_v = false;
template <class T, class E, class... Tags>
constexpr bool is_tensor_inline_v<tensor<T, E, tensor_inline, Tags...>> = true;
template <class T>
constexpr bool has_tensor_offset_v = false;
template <class T, class E, class D, class... Tags>
constexpr bool has_tensor_offset_v<tensor<T, E, D, Tags...>> =
    (is_same_v<Tags, tensor_offset> || ...);

}  // namespace metal

namespace emu {

template <class T, class E, class D, class... Tags>
constexpr bool is_tensor<metal::tensor<T, E, D, Tags...>> = true;

}  // namespace emu

EMU_SHIM_END
