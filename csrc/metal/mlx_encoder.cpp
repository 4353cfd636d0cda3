#include <mlx/backend/metal/device.h>
#include <sys/sysctl.h>

#include "metal/emulation.h"
#include "metal/verification.h"

namespace mto::metal {
namespace {

class MlxEncoder : public Encoder {
 public:
  explicit MlxEncoder(mx::Stream stream)
      : device_(mx::metal::device(stream.device)),
        encoder_(mx::metal::get_command_encoder(stream)) {}

  void allocate(mx::array& a) override {
    if (in_trial()) return allocate_poisoned(a);
    a.set_data(mx::allocator::malloc(a.nbytes()));
  }

  void pipeline(const Kernel& kernel) override {
    auto name = host_name(kernel);
    // MathMode::Safe, the default: kernels test for NaN and infinity.
    auto* library =
        device_.get_library(name + "_safe", mx::CompileOptions{}, [&] { return source(kernel); });
    mx::metal::MTLFCList constants;
    for (const auto& constant : kernel.constants) {
      std::visit(
          [&](const auto& value) {
            constants.emplace_back(&value, metal_type(value), constant.index);
          },
          constant.value);
    }
    auto* pipeline = device_.get_kernel(name, library, pipeline_name(kernel), constants);
    encoder_.set_compute_pipeline_state(pipeline);
  }

  void input(const mx::array& a, int index) override { encoder_.set_input_array(a, index); }
  void view(const mx::array& a, int64_t begin, int64_t, int index) override {
    encoder_.set_input_array(a, index, begin * static_cast<int64_t>(a.itemsize()));
  }
  void output(mx::array& a, int index) override { encoder_.set_output_array(a, index); }

  void bytes(const void* data, size_t size, int index) override {
    encoder_.set_bytes(static_cast<const char*>(data), static_cast<int>(size), index);
  }

  void threadgroup_memory(size_t size, int index) override {
    encoder_.set_threadgroup_memory_length(size, index);
  }

  void dispatch(Size threadgroups, Size threads) override {
    encoder_.dispatch_threadgroups(metal_size(threadgroups), metal_size(threads));
  }

  void keep(const mx::array& a) override { encoder_.add_temporary(a); }

 private:
  static MTL::DataType metal_type(bool) { return MTL::DataTypeBool; }
  static MTL::DataType metal_type(int32_t) { return MTL::DataTypeInt; }
  static MTL::DataType metal_type(uint32_t) { return MTL::DataTypeUInt; }
  static MTL::DataType metal_type(float) { return MTL::DataTypeFloat; }

  static MTL::Size metal_size(Size size) {
    return MTL::Size(static_cast<NS::UInteger>(size.x), static_cast<NS::UInteger>(size.y),
                     static_cast<NS::UInteger>(size.z));
  }

  mx::metal::Device& device_;
  mx::metal::CommandEncoder& encoder_;
};

std::string system_fact(const char* name) {
  char text[64] = {};
  size_t size = sizeof text - 1;
  return sysctlbyname(name, text, &size, nullptr, 0) == 0 ? text : "";
}

std::shared_ptr<const Device> this_mac(mx::Device device) {
  auto facts = std::make_shared<Device>();
  sscanf(system_fact("kern.osproductversion").c_str(), "%d.%d", &facts->macos_major,
         &facts->macos_minor);
  facts->build = system_fact("kern.osversion");
  facts->architecture = mx::metal::device(device).get_architecture();
  return facts;
}

}  // namespace

std::shared_ptr<const Device> device_of(mx::Stream stream) {
  if (stream.device != mx::Device::gpu) return nullptr;
  static auto mac = this_mac(stream.device);
  return mac;
}

std::unique_ptr<Encoder> gpu_encoder(mx::Stream stream) {
  return std::make_unique<MlxEncoder>(stream);
}

std::unique_ptr<Encoder> emulated_encoder(mx::Stream) { return nullptr; }

void set_emulation(std::shared_ptr<const Emulation>) {}
std::shared_ptr<const Emulation> emulation() { return nullptr; }

}  // namespace mto::metal
