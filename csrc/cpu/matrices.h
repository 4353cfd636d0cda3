#pragma once

#include <mlx/mlx.h>

#include <vector>

namespace mto {

namespace mx = mlx::core;

// An uninitialised array that lives until the tasks of `stream` scheduled so far are done. Memory
// is taken here, in eval_cpu, where an exception reaches the caller; none may leave a task.
mx::array temporary(mx::Shape shape, mx::Dtype dtype, mx::Stream stream);

// An array as a batch of row-contiguous matrices, broadcast to a batch shape. Made when the
// primitive is evaluated; data is read, and copied where its layout asks for it, only in the task
// on the stream.
class Matrices {
 public:
  Matrices(const mx::array& a, const mx::Shape& batch, mx::Stream stream);
  // The whole array as one row-contiguous block.
  Matrices(const mx::array& a, mx::Stream stream);

  // Call once, in the task.
  void load();
  // The matrix of one flat index into the batch shape; valid after load().
  const void* operator[](int64_t i) const { return data_ + offsets_[i] * itemsize_; }
  // One matrix for the whole batch.
  bool shared() const;
  // The matrices follow each other without gaps.
  bool dense() const;

 private:
  void copy_in(const mx::array& a, mx::Stream stream);

  const char* data_;
  char* copy_ =
      nullptr;  // where load() puts the matrices, when they are not contiguous as they are
  size_t itemsize_;
  mx::Shape shape_;
  mx::Strides strides_;
  std::vector<int64_t> offsets_;  // in elements
};

}  // namespace mto
