#include "cpu/matrices.h"

#include <mlx/backend/cpu/encoder.h>

#include <algorithm>
#include <cstring>

namespace mto {
namespace {

bool last_two_contiguous(const mx::array& a) {
  int64_t expected = 1;
  for (int axis = 1; axis <= 2; ++axis) {
    if (a.shape(-axis) != 1 && a.strides(-axis) != expected) return false;
    expected *= a.shape(-axis);
  }
  return true;
}

mx::Strides contiguous_strides(const mx::Shape& shape) {
  mx::Strides strides(shape.size(), 1);
  for (int axis = static_cast<int>(shape.size()) - 2; axis >= 0; --axis) {
    strides[axis] = strides[axis + 1] * shape[axis + 1];
  }
  return strides;
}

// The offset of each batch index; axes of size 1 repeat.
std::vector<int64_t> batch_offsets(const mx::Shape& shape, const mx::Strides& strides,
                                   const mx::Shape& batch) {
  std::vector<int64_t> offsets{0};
  int n_missing = static_cast<int>(batch.size() + 2 - shape.size());
  for (size_t axis = 0; axis < batch.size(); ++axis) {
    int own = static_cast<int>(axis) - n_missing;
    int64_t stride = own < 0 || shape[own] == 1 ? 0 : strides[own];
    std::vector<int64_t> next;
    next.reserve(offsets.size() * batch[axis]);
    for (int64_t offset : offsets) {
      for (int i = 0; i < batch[axis]; ++i) next.push_back(offset + i * stride);
    }
    offsets = std::move(next);
  }
  return offsets;
}

char* copy_strided(const char* src, char* dst, size_t axis, const mx::Shape& shape,
                   const mx::Strides& strides, size_t itemsize) {
  if (axis == shape.size()) {
    std::memcpy(dst, src, itemsize);
    return dst + itemsize;
  }
  if (axis + 1 == shape.size() && strides[axis] == 1) {
    std::memcpy(dst, src, shape[axis] * itemsize);
    return dst + shape[axis] * itemsize;
  }
  for (int i = 0; i < shape[axis]; ++i) {
    dst = copy_strided(src + i * strides[axis] * itemsize, dst, axis + 1, shape, strides, itemsize);
  }
  return dst;
}

}  // namespace

mx::array temporary(mx::Shape shape, mx::Dtype dtype, mx::Stream stream) {
  mx::array a(std::move(shape), dtype, nullptr, {});
  a.set_data(mx::allocator::malloc(a.nbytes()));
  mx::cpu::get_command_encoder(stream).add_temporary(a);
  return a;
}

void Matrices::copy_in(const mx::array& a, mx::Stream stream) {
  copy_ = temporary(shape_, a.dtype(), stream).data<char>();
}

Matrices::Matrices(const mx::array& a, const mx::Shape& batch, mx::Stream stream)
    : data_(a.data<char>()), itemsize_(a.itemsize()), shape_(a.shape()), strides_(a.strides()) {
  if (last_two_contiguous(a)) {
    offsets_ = batch_offsets(shape_, strides_, batch);
  } else {
    copy_in(a, stream);
    offsets_ = batch_offsets(shape_, contiguous_strides(shape_), batch);
  }
}

Matrices::Matrices(const mx::array& a, mx::Stream stream)
    : data_(a.data<char>()),
      itemsize_(a.itemsize()),
      shape_(a.shape()),
      strides_(a.strides()),
      offsets_{0} {
  if (!a.flags().row_contiguous) copy_in(a, stream);
}

void Matrices::load() {
  if (!copy_) return;
  copy_strided(data_, copy_, 0, shape_, strides_, itemsize_);
  data_ = copy_;
}

bool Matrices::shared() const {
  return std::all_of(offsets_.begin(), offsets_.end(), [&](int64_t o) { return o == offsets_[0]; });
}

bool Matrices::dense() const {
  int64_t size = int64_t{shape_.end()[-1]} * shape_.end()[-2];
  for (size_t i = 0; i < offsets_.size(); ++i) {
    if (offsets_[i] != static_cast<int64_t>(i) * size) return false;
  }
  return true;
}

}  // namespace mto
