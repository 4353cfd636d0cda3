#include "cpu/isa.h"

#include <algorithm>
#include <atomic>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

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

struct Tiles {
  bool bf16 = false, int8 = false;
};

Tiles detect_tiles() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned kTiles = 1u << 24, kBf16 = 1u << 22, kInt8 = 1u << 25,
                     kBytes = 1u << 1 | 1u << 11;
  constexpr unsigned kConversions = 1u << 5;
  unsigned a, b, c, d, conversions;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kTiles) == 0) return {};
  bool int8 = (d & kInt8) != 0 && (c & kBytes) == kBytes, bf16 = (d & kBf16) != 0;
  if (!__get_cpuid_count(7, 1, &conversions, &b, &c, &d)) return {};
  bf16 = bf16 && (conversions & kConversions) != 0;
  // The kernel saves tiles only for processes that ask (arch_prctl(2)).
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  if (syscall(SYS_arch_prctl, kRequestPermission, kTileData) != 0) return {};
  return {bf16, int8};
#else
  return {};
#endif
}

const Tiles& tiles() {
  static const Tiles found = detect_tiles();
  return found;
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

bool has_bf16_tiles() { return tiles().bf16; }
bool has_int8_tiles() { return tiles().int8; }

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
