#include "cpu/matrices.h"

#include <mlx/backend/cpu/encoder.h>

#include <algorithm>

#include "cpu/strided.h"

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
    offsets_ = batch_offsets(shape_, strides_, batch, 2);
  } else {
    copy_in(a, stream);
    offsets_ = batch_offsets(shape_, contiguous_strides(shape_), batch, 2);
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
