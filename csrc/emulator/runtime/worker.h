#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "arena.h"
#include "emulator/runtime.h"
#include "fiber.h"
#include "findings.h"
#include "threadgroup.h"
#include "threadgroup_memory.h"
#include "trace.h"
#include "values.h"

namespace emu {

// What all workers of a launch share.
struct Launch {
  Kernel kernel;
  EmuPolicies policies;
  uint32_t threads[3];       // of a full threadgroup
  uint32_t grid[3];          // threadgroups
  uint32_t grid_threads[3];  // threads
  std::vector<size_t> threadgroup_bytes;
  Arena arena;
  Shadow shadows[kBindings];  // of the buffers, in the trace build
  std::atomic<uint64_t> next{0};
  std::atomic<bool> given_up{false};
};

struct Permutation {
  uint32_t key;
  std::vector<uint16_t> order;
};

// What the signal handler learnt; read when the worker is back on its own stack.
struct Trap {
  int signal = 0;
  uintptr_t address = 0;
  Access access = Access::kUnknown;
  Who who;
  int stack = 0;  // of the thread whose stack was in use
  Trace trace;
};

// Where a thread continues for a moment that a signal handler takes out of a kernel: a stack that
// nothing else uses, and room for the context that is left.
struct Landing {
  alignas(16) char stack[512];
  void* scrap;
};

// One OS thread of a launch. Everything that kernel code changes through the runtime is in here, so
// that threadgroups on different OS threads share nothing but device memory.
class Worker {
 public:
  explicit Worker(Launch& launch) : launch(launch), threadgroup(*this) {}
  // Takes threadgroups until none is left. False: no memory for stacks.
  bool run();

  Who who() const;
  // Fills in the running thread and where it is in the code.
  void locate(Finding& finding, uintptr_t frame) const;
  void record(Finding finding, uintptr_t frame);
  void record_trap();
  [[noreturn]] void give_up();

  Launch& launch;
  Threadgroup threadgroup;
  ThreadgroupMemory memory;
  Stacks stacks;
  Tracer tracer{*this};
  Values values{*this};
  Counters counters = {};
  Trap trap;
  Landing landing;
  // Outside kernel code, where locks may be held, the launch cannot be given up at any instruction.
  std::atomic<bool> in_runtime{true};
  bool out_of_memory = false;
  // Pointers, because kernels keep those that they were given.
  std::vector<std::unique_ptr<Permutation>> permutations;

 private:
  TGInfo info_of(uint64_t index) const;
  uint64_t pick(uint64_t turn, uint64_t total) const;
};

// The worker of this OS thread; null outside a launch.
extern thread_local Worker* worker;

Findings& findings();

// Lives in functions that kernel code calls.
class InRuntime {
 public:
  InRuntime() : worker_(worker), before_(worker_ != nullptr && worker_->in_runtime) { set(true); }
  InRuntime(const InRuntime&) = delete;
  InRuntime& operator=(const InRuntime&) = delete;
  ~InRuntime() { set(before_); }
  Worker* current() const { return worker_; }

 private:
  void set(bool inside) {
    if (worker_ != nullptr) worker_->in_runtime.store(inside, std::memory_order_relaxed);
  }

  Worker* worker_;  // kept, because the look-up of thread-local storage is a function call
  bool before_;
};

}  // namespace emu
