#pragma once

#include <string>

namespace mto::metal {

// What decides which kernels a Mac can run.
struct Device {
  int macos_major = 0;
  int macos_minor = 0;
  std::string architecture;  // "applegpu_g17s"
  std::string build;         // of the system, "25C56"; verdicts about kernels hold for one build
  bool verified = true;      // whether kernels have to pass metal/verification.h before they run
};

// The first system whose TensorOps take cooperative inputs: Apple's MPPTensorOpsMatMul2dImpl.h
// switches its entry points at 260200, and MLX its own kernels.
constexpr int kMacosMajor = 26, kMacosMinor = 2;

inline std::string to_string(const Device& device) {
  return device.architecture + " (macOS " + std::to_string(device.macos_major) + "." +
         std::to_string(device.macos_minor) + ", build " + device.build + ")";
}

// Why no kernel runs on the device, in words; empty where they do.
inline std::string unfit(const Device& device) {
  if (device.macos_major > kMacosMajor ||
      (device.macos_major == kMacosMajor && device.macos_minor >= kMacosMinor)) {
    return "";
  }
  return "macOS " + std::to_string(device.macos_major) + "." + std::to_string(device.macos_minor) +
         " (26.2 is needed)";
}

}  // namespace mto::metal
