#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "metal/encoder.h"

namespace mto::metal {

struct Buffer {
  int index;
  void* data;
  size_t size;
};

// Everything that a launch is, in the order of Metal's own calls.
struct Launch {
  const Kernel& kernel;
  std::vector<Buffer> buffers;
  std::vector<std::pair<int, size_t>> threadgroup_memory;
  Size threadgroups;
  Size threads;
  bool trial;  // run to verify the kernel, not for its result
};

struct Emulation {
  Device device;
  // Returns when the kernel has run; throws where it is found wrong.
  std::function<void(const Launch&)> launch;
  // The text that is compiled: what the emulator was asked to change in it is in.
  std::function<std::string(const Kernel&)> source;
};

// While one is set, ops of CPU streams run their Metal kernels through it; null ends that. Not on
// macOS.
void set_emulation(std::shared_ptr<const Emulation> emulation);
std::shared_ptr<const Emulation> emulation();

// While one lives, its thread sees no emulation: ops of CPU streams run their CPU kernels.
class WithoutEmulation {
 public:
  WithoutEmulation() : before_(std::exchange(active, true)) {}
  ~WithoutEmulation() { active = before_; }
  WithoutEmulation(const WithoutEmulation&) = delete;

  static inline thread_local bool active = false;

 private:
  bool before_;
};

// The kernels that an op would launch for a lazy array of one of our primitives, without launching.
std::vector<Kernel> kernels_of(const mx::array& a);

}  // namespace mto::metal
