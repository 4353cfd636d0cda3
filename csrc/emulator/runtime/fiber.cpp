#include "fiber.h"

#include <sys/mman.h>

#include "emulator/runtime.h"
#include "stack_pool.h"

#if defined(__x86_64__)
asm(R"(
.text
.globl emu_swap
.hidden emu_swap
.type emu_swap,@function
emu_swap:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emu_swap, .-emu_swap
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl emu_swap
.hidden emu_swap
.type emu_swap,%function
emu_swap:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size emu_swap, .-emu_swap
)");
#else
#error "the emulator has fibers for x86-64 and arm64 only"
#endif

namespace emu {

// The frame pointer is zero in both, so that a walk of the frames ends here.
void* first_context(char* stack_top, void (*entry)()) {
  auto** slot = reinterpret_cast<void**>(stack_top);
#if defined(__x86_64__)
  // Where entry's return address would be: keeps the stack aligned as after a call.
  *--slot = nullptr;
  *--slot = reinterpret_cast<void*>(entry);
  for (int i = 0; i < 6; ++i) *--slot = nullptr;
#else
  slot -= 160 / sizeof(void*);
  for (int i = 0; i < 20; ++i) slot[i] = nullptr;
  slot[11] = reinterpret_cast<void*>(entry);  // x30
#endif
  return slot;
}

Stacks::~Stacks() {
  if (base_ == nullptr) return;
  if (bytes_ == kUsualBytes && stack_pool().give(base_, n_stacks_, bytes_)) return;
  munmap(base_, memory_bytes());
}

bool Stacks::map(int n_stacks, size_t bytes) {
  bytes_ = round_up(bytes, page_bytes());
  // Few sizes, so that they are found again.
  for (n_stacks_ = static_cast<int>(kLanes); n_stacks_ < n_stacks; n_stacks_ *= 2) {
  }
  base_ = stack_pool().take(n_stacks_, bytes_);
  if (base_ != nullptr) return true;
  base_ = reserve(memory_bytes());
  if (base_ == nullptr) return false;
  for (int i = 0; i < n_stacks_; ++i) {
    if (!allow_access(bottom(i), bytes_)) return false;
  }
  return true;
}

char* Stacks::bottom(int index) const {
  return base_ + index * (bytes_ + kGuardBytes) + kGuardBytes;
}

bool Stacks::contains(uintptr_t address) const {
  return address - reinterpret_cast<uintptr_t>(base_) < memory_bytes();
}

bool Stacks::overflowed(int index, uintptr_t address) const {
  return reinterpret_cast<uintptr_t>(bottom(index)) - address <= kGuardBytes;
}

}  // namespace emu
