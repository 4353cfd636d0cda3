#include <mlx/backend/cpu/encoder.h>

#include <atomic>
#include <future>

#include "metal/emulation.h"
#include "metal/verification.h"

namespace mto::metal {
namespace {

// Null while emulation is off.
std::atomic<std::shared_ptr<const Emulation>> current;

// Tasks of the stream compute the inputs; kernels run in the calling thread, where an exception
// reaches whoever evaluates.
void wait_for(mx::Stream stream) {
  std::promise<void> done;
  mx::cpu::get_command_encoder(stream).dispatch([&done] { done.set_value(); });
  done.get_future().wait();
}

class EmulatedEncoder : public Encoder {
 public:
  EmulatedEncoder(std::shared_ptr<const Emulation> emulation, mx::Stream stream)
      : emulation_(std::move(emulation)), stream_(stream) {}

  void allocate(mx::array& a) override { allocate_poisoned(a); }

  void pipeline(const Kernel& kernel) override {
    kernel_ = kernel;
    buffers_.clear();
    bytes_.clear();
    threadgroup_memory_.clear();
  }

  void input(const mx::array& a, int index) override {
    buffers_.push_back({index, const_cast<char*>(a.data<char>()), a.nbytes()});
    // Data that an unfinished task of another op holds is read after wait_for().
    inputs_.push_back(a);
  }

  void view(const mx::array& a, int64_t begin, int64_t end, int index) override {
    auto item = static_cast<int64_t>(a.itemsize());
    auto* data = const_cast<char*>(a.data<char>()) + begin * item;
    buffers_.push_back({index, data, static_cast<size_t>((end - begin) * item)});
    inputs_.push_back(a);
  }

  void output(mx::array& a, int index) override {
    buffers_.push_back({index, a.data<char>(), a.nbytes()});
  }

  void bytes(const void* data, size_t size, int index) override {
    auto* begin = static_cast<const char*>(data);
    bytes_.push_back(std::make_unique<std::string>(begin, size));
    buffers_.push_back({index, bytes_.back()->data(), size});
  }

  void threadgroup_memory(size_t size, int index) override {
    threadgroup_memory_.emplace_back(index, size);
  }

  void dispatch(Size threadgroups, Size threads) override {
    wait_for(stream_);
    emulation_->launch({kernel_, buffers_, threadgroup_memory_, threadgroups, threads, in_trial()});
  }

  void keep(const mx::array&) override {}

 private:
  std::shared_ptr<const Emulation> emulation_;
  mx::Stream stream_;
  Kernel kernel_;
  std::vector<mx::array> inputs_;
  std::vector<Buffer> buffers_;
  std::vector<std::unique_ptr<std::string>> bytes_;
  std::vector<std::pair<int, size_t>> threadgroup_memory_;
};

}  // namespace

void set_emulation(std::shared_ptr<const Emulation> emulation) {
  current.store(std::move(emulation));
  forget_verdicts();
}

std::shared_ptr<const Emulation> emulation() {
  return WithoutEmulation::active ? nullptr : current.load();
}

std::shared_ptr<const Device> device_of(mx::Stream stream) {
  auto active = emulation();
  if (!active || stream.device != mx::Device::cpu) return nullptr;
  return {active, &active->device};
}

std::unique_ptr<Encoder> gpu_encoder(mx::Stream) {
  throw std::runtime_error("[mlx_tensorops] This build has no kernels for GPUs.");
}

std::unique_ptr<Encoder> emulated_encoder(mx::Stream stream) {
  auto active = emulation();
  return active ? std::make_unique<EmulatedEncoder>(std::move(active), stream) : nullptr;
}

}  // namespace mto::metal
