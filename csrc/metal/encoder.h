#pragma once

// The one road from an op to a Metal kernel. <op>_metal.cpp is written against Encoder; MLX's
// command encoder carries it out on a Mac, the emulator on Linux.

#include <mlx/mlx.h>

#include <memory>
#include <vector>

#include "common/integers.h"
#include "metal/device.h"
#include "metal/kernel.h"

namespace mto::metal {

namespace mx = mlx::core;

class Encoder {
 public:
  virtual ~Encoder() = default;

  // Memory for a result. Where results are tested, elements that no kernel writes are NaN, and not
  // what an earlier result left there.
  virtual void allocate(mx::array& a) = 0;
  virtual void pipeline(const Kernel& kernel) = 0;
  // Arrays are row-contiguous.
  virtual void input(const mx::array& a, int index) = 0;
  // Elements begin .. end, counted from the first, of an array of any strides.
  virtual void view(const mx::array& a, int64_t begin, int64_t end, int index) = 0;
  virtual void output(mx::array& a, int index) = 0;
  virtual void bytes(const void* data, size_t size, int index) = 0;
  virtual void threadgroup_memory(size_t size, int index) = 0;
  virtual void dispatch(Size threadgroups, Size threads_per_threadgroup) = 0;
  // Keeps an array of eval_metal alive until the kernels dispatched so far are done.
  virtual void keep(const mx::array& a) = 0;

  // A thread for each of `n` items. `n` is bound at `index`: the last threads have none.
  void dispatch_each(int64_t n, int index) {
    constexpr int64_t kThreads = 256;
    value(n, index);
    dispatch({ceil_div(n, kThreads)}, {kThreads});
  }

  template <typename T>
  void value(const T& value, int index) {
    bytes(&value, sizeof value, index);
  }
};

// Of each input.
using TrialShapes = std::vector<mx::Shape>;
// Small ones have tails in every dimension. Large ones are there because compilers have made
// kernels that were right up to some size and wrong beyond.
enum class TrialSize { kSmall, kLarge };

// An op that has Metal kernels.
class MetalPrimitive {
 public:
  virtual ~MetalPrimitive() = default;
  virtual void eval_metal(Encoder& encoder, const std::vector<mx::array>& inputs,
                          std::vector<mx::array>& outputs) = 0;

  // What metal/verification.h needs to try out the kernels that the op runs for `inputs`: the op on
  // another stream; shapes of inputs that may reach these very kernels, to be tried in order; and
  // values for which every right kernel, the CPU's too, gives the same bits.
  virtual std::shared_ptr<mx::Primitive> on(mx::Stream stream) const = 0;
  virtual std::vector<TrialShapes> trial_shapes(const std::vector<mx::array>& inputs,
                                                TrialSize size) const = 0;
  virtual std::vector<mx::array> trial_inputs(const TrialShapes& shapes,
                                              const std::vector<mx::array>& inputs) const = 0;
};

// The device behind a stream, null where its kernels are not Metal's.
std::shared_ptr<const Device> device_of(mx::Stream stream);

void allocate_poisoned(mx::array& a);

// For eval_gpu. Throws where there is no Metal.
std::unique_ptr<Encoder> gpu_encoder(mx::Stream stream);

// For eval_cpu, which runs kernels in the emulator while that is on; null where it is off.
std::unique_ptr<Encoder> emulated_encoder(mx::Stream stream);

// "half" for float16, and so on.
const char* type_name(mx::Dtype dtype);

}  // namespace mto::metal
