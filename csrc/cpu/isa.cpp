#include "cpu/isa.h"

#include <algorithm>
#include <atomic>

namespace mto {
namespace {

std::vector<Isa> detect() {
  std::vector<Isa> isas{Isa::kScalar};
#if defined(__x86_64__) || defined(_M_X64)
  __builtin_cpu_init();
  bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
              __builtin_cpu_supports("f16c");
  if (avx2) isas.push_back(Isa::kAvx2);
  if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq")) {
    isas.push_back(Isa::kAvx512);
  }
#elif defined(__aarch64__)
  isas.push_back(Isa::kNeon);
#endif
  return isas;
}

std::atomic<Isa>& chosen() {
  static std::atomic<Isa> isa{available_isas().back()};
  return isa;
}

}  // namespace

const std::vector<Isa>& available_isas() {
  static const std::vector<Isa> isas = detect();
  return isas;
}

Isa current_isa() { return chosen().load(std::memory_order_relaxed); }

bool set_current_isa(Isa isa) {
  const auto& isas = available_isas();
  if (std::find(isas.begin(), isas.end(), isa) == isas.end()) return false;
  chosen().store(isa, std::memory_order_relaxed);
  return true;
}

const char* isa_name(Isa isa) {
  switch (isa) {
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kNeon:
      return "neon";
    default:
      return "scalar";
  }
}

}  // namespace mto
