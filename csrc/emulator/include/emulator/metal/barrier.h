#pragma once

#include "emulator/metal/traits.h"

// metal_compute: memory flags and barriers (specification 4, section 6.9.1).

EMU_SHIM_BEGIN

namespace metal {

// Values as in Apple's metal_compute (a preprocessed copy of Xcode 10.1's shows them); kernels of
// other compilers write metal::mem_flags(2).
enum class mem_flags {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8,
  mem_object_data = 16,
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) {
  return static_cast<mem_flags>(static_cast<int>(a) | static_cast<int>(b));
}
constexpr mem_flags operator&(mem_flags a, mem_flags b) {
  return static_cast<mem_flags>(static_cast<int>(a) & static_cast<int>(b));
}

enum class memory_scope {
  memory_scope_simdgroup,
  memory_scope_threadgroup,
  memory_scope_device,
};
enum thread_scope {
  thread_scope_thread,
  thread_scope_simdgroup,
  thread_scope_threadgroup,
  thread_scope_device,
};

static_assert(static_cast<uint32_t>(mem_flags::mem_device) == emu::kMemDevice);
static_assert(static_cast<uint32_t>(mem_flags::mem_threadgroup) == emu::kMemThreadgroup);

inline void threadgroup_barrier(mem_flags flags, int line = __builtin_LINE()) {
  emu::barrier(emu::kThreadgroup, static_cast<uint32_t>(flags), "threadgroup_barrier", line);
}
inline void simdgroup_barrier(mem_flags flags, int line = __builtin_LINE()) {
  emu::barrier(emu::kSimdgroup, static_cast<uint32_t>(flags), "simdgroup_barrier", line);
}
inline void quadgroup_barrier(mem_flags flags, int line = __builtin_LINE()) {
  emu::barrier(emu::kQuad, static_cast<uint32_t>(flags), "quadgroup_barrier", line);
}
inline void threadgroup_barrier(mem_flags flags, memory_scope, int line = __builtin_LINE()) {
  threadgroup_barrier(flags, line);
}
inline void simdgroup_barrier(mem_flags flags, memory_scope, int line = __builtin_LINE()) {
  simdgroup_barrier(flags, line);
}

}  // namespace metal

EMU_SHIM_END
