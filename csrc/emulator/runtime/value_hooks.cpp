#include <cstring>

#include "values.h"
#include "worker.h"

// What clang calls in a kernel translation unit compiled with -fsanitize=kernel-memory, and what
// shim code calls about memory that the compiler cannot judge.

namespace emu {

void forget(const void* p, size_t bytes, const char* name) {
  if (!kValues || worker == nullptr) return;
  worker->values.forget(reinterpret_cast<uintptr_t>(p), bytes, name, 0);
}

}  // namespace emu

#ifdef EMU_VALUES

namespace {

using emu::Metadata;
using emu::worker;

// Static objects of the kernel's are made before there is a worker.
alignas(16) char call_state_outside[4096];
alignas(16) char unset_outside[4096];
alignas(16) uint32_t origins_outside[1024];

uintptr_t address_of(const void* p) { return reinterpret_cast<uintptr_t>(p); }

Metadata outside() {
  memset(unset_outside, 0, sizeof unset_outside);
  return {unset_outside, origins_outside};
}

Metadata of_load(const void* p, size_t bytes) {
  return worker != nullptr ? worker->values.of_load(address_of(p), bytes) : outside();
}

Metadata of_store(const void* p, size_t bytes, void* frame) {
  if (worker == nullptr) return outside();
  return worker->values.of_store(address_of(p), bytes, address_of(frame));
}

void set(const void* p, size_t bytes) {
  if (worker != nullptr) worker->values.set(address_of(p), bytes);
}

}  // namespace

extern "C" {

#define EMU_METADATA_HOOKS(bytes)                                                      \
  Metadata __msan_metadata_ptr_for_load_##bytes(void* p) { return of_load(p, bytes); } \
  Metadata __msan_metadata_ptr_for_store_##bytes(void* p) {                            \
    return of_store(p, bytes, __builtin_frame_address(0));                             \
  }
EMU_METADATA_HOOKS(1)
EMU_METADATA_HOOKS(2)
EMU_METADATA_HOOKS(4)
EMU_METADATA_HOOKS(8)
#undef EMU_METADATA_HOOKS

Metadata __msan_metadata_ptr_for_load_n(void* p, size_t bytes) { return of_load(p, bytes); }
Metadata __msan_metadata_ptr_for_store_n(void* p, size_t bytes) {
  return of_store(p, bytes, __builtin_frame_address(0));
}

void* __msan_get_context_state() {
  return worker != nullptr ? worker->values.call_state() : call_state_outside;
}

void __msan_warning(uint32_t origin) {
  if (worker != nullptr) worker->values.branch(origin, address_of(__builtin_frame_address(0)));
}

uint32_t __msan_chain_origin(uint32_t origin) { return origin; }

void __msan_poison_alloca(void* p, size_t bytes, char* name) {
  if (worker == nullptr) return;
  const uintptr_t caller = address_of(__builtin_return_address(0)) - 1;
  worker->values.forget(address_of(p), bytes, name, caller);
}

void __msan_unpoison_alloca(void* p, size_t bytes) { set(p, bytes); }

void __msan_instrument_asm_store(void* p, size_t bytes) { set(p, bytes); }

void* __msan_memcpy(void* to, const void* from, size_t bytes) {
  memcpy(to, from, bytes);
  if (worker != nullptr) {
    worker->values.copy(address_of(to), address_of(from), bytes,
                        address_of(__builtin_frame_address(0)));
  }
  return to;
}

void* __msan_memmove(void* to, const void* from, size_t bytes) {
  memmove(to, from, bytes);
  if (worker != nullptr) {
    worker->values.copy(address_of(to), address_of(from), bytes,
                        address_of(__builtin_frame_address(0)));
  }
  return to;
}

void* __msan_memset(void* to, int value, size_t bytes) {
  memset(to, value, bytes);
  set(to, bytes);
  return to;
}
}

#endif
