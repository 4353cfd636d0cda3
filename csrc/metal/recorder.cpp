#include <mlx/primitives.h>

#include <cstring>

#include "common/counters.h"
#include "metal/emulation.h"

namespace mto::metal {
namespace {

// Notes pipelines and runs nothing.
class Recorder : public Encoder {
 public:
  void allocate(mx::array& a) override { a.set_data(mx::allocator::malloc(a.nbytes())); }
  void pipeline(const Kernel& kernel) override { kernels.push_back(kernel); }
  void input(const mx::array&, int) override {}
  void view(const mx::array&, int64_t, int64_t, int) override {}
  void output(mx::array&, int) override {}
  void bytes(const void*, size_t, int) override {}
  void threadgroup_memory(size_t, int) override {}
  void dispatch(Size, Size) override {}
  void keep(const mx::array&) override {}

  std::vector<Kernel> kernels;
};

}  // namespace

std::vector<Kernel> kernels_of(const mx::array& a) {
  auto* primitive = a.has_primitive() ? dynamic_cast<MetalPrimitive*>(&a.primitive()) : nullptr;
  if (!primitive) return {};
  // Stand-ins take what the op allocates: `a` itself stays lazy.
  std::vector<mx::array> outputs;
  for (const auto& output : a.outputs()) {
    outputs.emplace_back(output.shape(), output.dtype(), nullptr, std::vector<mx::array>{});
  }
  Recorder recorder;
  Uncounted uncounted;
  primitive->eval_metal(recorder, a.inputs(), outputs);
  return recorder.kernels;
}

void allocate_poisoned(mx::array& a) {
  a.set_data(mx::allocator::malloc(a.nbytes()));
  // The memory of a Mac's GPU is the CPU's too. All ones are NaN in every floating type.
  if (a.nbytes() > 0) std::memset(a.data<char>(), 0xff, a.nbytes());
}

const char* type_name(mx::Dtype dtype) {
  if (dtype == mx::float32) return "float";
  if (dtype == mx::float16) return "half";
  if (dtype == mx::bfloat16) return "bfloat";
  throw std::runtime_error("[metal] no kernel for this dtype");
}

}  // namespace mto::metal
