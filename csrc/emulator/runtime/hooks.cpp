#include <cstring>

#include "trace.h"
#include "worker.h"

// What clang calls in a kernel translation unit compiled with
// -fsanitize=kernel-address, and what shim code, which is not instrumented, calls in its place.

namespace emu {
namespace {

uintptr_t frame_of(void* frame) { return reinterpret_cast<uintptr_t>(frame); }

void access(const void* p, size_t bytes, Access access, void* frame, bool by_shim = false) {
  if (!kTrace || worker == nullptr) return;
  worker->tracer.access(reinterpret_cast<uintptr_t>(p), bytes, access, frame_of(frame), by_shim);
}

}  // namespace

void account(const void* p, size_t bytes, bool store) {
  access(p, bytes, store ? Access::kStore : Access::kLoad, __builtin_frame_address(0), true);
}

void account_atomic(const void* p, size_t bytes) {
  access(p, bytes, Access::kAtomic, __builtin_frame_address(0), true);
}

}  // namespace emu

using emu::Access;

extern "C" {

#define EMU_ACCESS_HOOKS(bytes)                                        \
  void __asan_load##bytes##_noabort(void* p) {                         \
    emu::access(p, bytes, Access::kLoad, __builtin_frame_address(0));  \
  }                                                                    \
  void __asan_store##bytes##_noabort(void* p) {                        \
    emu::access(p, bytes, Access::kStore, __builtin_frame_address(0)); \
  }
EMU_ACCESS_HOOKS(1)
EMU_ACCESS_HOOKS(2)
EMU_ACCESS_HOOKS(4)
EMU_ACCESS_HOOKS(8)
EMU_ACCESS_HOOKS(16)
#undef EMU_ACCESS_HOOKS

void __asan_loadN_noabort(void* p, size_t bytes) {
  emu::access(p, bytes, Access::kLoad, __builtin_frame_address(0));
}

void __asan_storeN_noabort(void* p, size_t bytes) {
  emu::access(p, bytes, Access::kStore, __builtin_frame_address(0));
}

void* __asan_memcpy(void* to, const void* from, size_t bytes) {
  emu::access(from, bytes, Access::kLoad, __builtin_frame_address(0));
  emu::access(to, bytes, Access::kStore, __builtin_frame_address(0));
  return memcpy(to, from, bytes);
}

void* __asan_memmove(void* to, const void* from, size_t bytes) {
  emu::access(from, bytes, Access::kLoad, __builtin_frame_address(0));
  emu::access(to, bytes, Access::kStore, __builtin_frame_address(0));
  return memmove(to, from, bytes);
}

void* __asan_memset(void* to, int value, size_t bytes) {
  emu::access(to, bytes, Access::kStore, __builtin_frame_address(0));
  return memset(to, value, bytes);
}

void __asan_handle_no_return() {}
}
