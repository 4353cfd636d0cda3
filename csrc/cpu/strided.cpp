#include "cpu/strided.h"

#include <cstring>

#include "cpu/matrices.h"

namespace mto {

mx::Strides contiguous_strides(const mx::Shape& shape) {
  mx::Strides strides(shape.size(), 1);
  for (int axis = static_cast<int>(shape.size()) - 2; axis >= 0; --axis) {
    strides[axis] = strides[axis + 1] * shape[axis + 1];
  }
  return strides;
}

std::vector<int64_t> batch_offsets(const mx::Shape& shape, const mx::Strides& strides,
                                   const mx::Shape& batch, int n_own) {
  std::vector<int64_t> offsets{0};
  int n_missing = static_cast<int>(batch.size() + n_own) - static_cast<int>(shape.size());
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

Strided::Strided(const mx::array& a, const mx::Shape& batch, int n_own, mx::Stream stream)
    : data_(a.data<char>()),
      itemsize_(a.itemsize()),
      n_own_(n_own),
      shape_(a.shape()),
      source_strides_(a.strides()),
      strides_(a.strides()) {
  if (a.size() != 0 && shape_.back() != 1 && strides_.back() != 1) {
    copy_ = temporary(shape_, a.dtype(), stream).data<char>();
    strides_ = contiguous_strides(shape_);
  }
  offsets_ = batch_offsets(shape_, strides_, batch, n_own);
}

void Strided::in_bytes() {
  unit_ = static_cast<int64_t>(itemsize_);
  for (auto& offset : offsets_) offset *= unit_;
}

void Strided::load() {
  if (!copy_) return;
  copy_strided(data_, copy_, 0, shape_, source_strides_, itemsize_);
  data_ = copy_;
}

int64_t Strided::stride(int axis) const {
  size_t own = shape_.size() - n_own_ + axis;
  return shape_[own] == 1 ? 0 : strides_[own] * unit_;
}

}  // namespace mto
