#pragma once

#include <mlx/mlx.h>

#include <vector>

namespace mto {

namespace mx = mlx::core;

mx::Strides contiguous_strides(const mx::Shape& shape);

// The offset in elements of each flat index into a batch shape, to which all but the last n_own
// axes broadcast.
std::vector<int64_t> batch_offsets(const mx::Shape& shape, const mx::Strides& strides,
                                   const mx::Shape& batch, int n_own);

// Writes the elements from `axis` on in row-major order; returns the end of what was written.
char* copy_strided(const char* src, char* dst, size_t axis, const mx::Shape& shape,
                   const mx::Strides& strides, size_t itemsize);

// An array whose last n_own axes are its own and whose others broadcast to a batch shape. It is
// read where it lies, unless its last axis has gaps. Made when the primitive is evaluated; data is
// read only in the task on the stream.
class Strided {
 public:
  Strided(const mx::array& a, const mx::Shape& batch, int n_own, mx::Stream stream);

  // From now on offsets and strides count bytes.
  void in_bytes();
  // Call once, in the task.
  void load();
  // Valid after load().
  const void* data() const { return data_; }
  // One a batch index, in elements.
  const int64_t* batch() const { return offsets_.data(); }
  // Of own axis `axis`, in elements; 0 where the axis has one element.
  int64_t stride(int axis) const;

 private:
  const char* data_;
  char* copy_ = nullptr;
  size_t itemsize_;
  int64_t unit_ = 1;  // an element is so many of what strides count
  int n_own_;
  mx::Shape shape_;
  mx::Strides source_strides_, strides_;
  std::vector<int64_t> offsets_;
};

}  // namespace mto
