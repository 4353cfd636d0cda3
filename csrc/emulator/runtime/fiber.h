#pragma once

#include <cstddef>
#include <cstdint>

#include "pages.h"

namespace emu {

// Saves the callee-saved registers and the stack pointer in *save and continues where `to` was
// saved. Signal mask and floating-point environment stay as they are.
extern "C" void emu_swap(void** save, void* to);

// The saved context of a fiber that has not run yet: the first swap to it calls entry, which must
// not return.
void* first_context(char* stack_top, void (*entry)());

// Stacks of one OS thread, each above a guard page. Their memory goes back to a pool, or is
// unmapped: a process that launches often would otherwise run into the kernel's limit on mappings.
class Stacks {
 public:
  Stacks() = default;
  Stacks(const Stacks&) = delete;
  Stacks& operator=(const Stacks&) = delete;
  ~Stacks();

  // Cooperative tensors of a 128 x 128 tile and what the compiler spills fit in it several times.
  // Stacks of another size are not kept in the pool.
  static constexpr size_t kUsualBytes = 256 * 1024;

  bool map(int n_stacks, size_t bytes);
  char* bottom(int index) const;
  char* top(int index) const { return bottom(index) + bytes_; }
  const char* memory() const { return base_; }
  size_t memory_bytes() const { return n_stacks_ * (bytes_ + kGuardBytes); }
  bool contains(uintptr_t address) const;
  // Whether the address is in the guard page of the stack.
  bool overflowed(int index, uintptr_t address) const;

 private:
  char* base_ = nullptr;
  int n_stacks_ = 0;
  size_t bytes_ = 0;
};

}  // namespace emu
