#pragma once

#include <stddef.h>
#include <stdint.h>

// What a rewritten kernel and the Metal headers of this emulator need from the runtime. It is
// included by every kernel translation unit, so it uses no C++ standard library.
//
// Model: each GPU thread ("lane") is a fiber with a stack of its own. All fibers of a threadgroup
// run on one OS thread, which switches between them only inside rendezvous() and barrier(). So
// plain code of a kernel runs without interruption from one meeting point to the next, and
// thread_local storage is threadgroup storage.

#include "emulator/policies.h"

// Everything between these two belongs to the emulator, not to the kernel: the trace build does not
// instrument it (use emu::account for memory that it touches on behalf of the kernel), and
// findings are attributed to the kernel line that called it. Wrap every header of the shim.
#define EMU_PRAGMA(text) _Pragma(#text)
#define EMU_SHIM_BEGIN                                                                         \
  EMU_PRAGMA(clang attribute push(__attribute__((nodebug)), apply_to = hasType(functionType))) \
  EMU_PRAGMA(                                                                                  \
      clang attribute push(__attribute__((no_sanitize("kernel-address"))), apply_to = function))
#define EMU_SHIM_END EMU_PRAGMA(clang attribute pop) EMU_PRAGMA(clang attribute pop)

EMU_SHIM_BEGIN

namespace emu {

// ---- who runs -----------------------------------------------------------------------------------

struct Lane {
  uint32_t lane;         // thread_index_in_simdgroup
  uint32_t simdgroup;    // simdgroup_index_in_threadgroup
  uint32_t index;        // thread_index_in_threadgroup
  uint32_t position[3];  // thread_position_in_threadgroup
};

struct TGInfo {
  uint32_t position[3];      // threadgroup_position_in_grid
  uint32_t threads[3];       // threads_per_threadgroup: smaller at the edge of a grid of threads
  uint32_t full_threads[3];  // dispatch_threads_per_threadgroup
  uint32_t grid[3];          // threadgroups_per_grid
  uint32_t grid_threads[3];  // threads_per_grid
  uint32_t simdgroups;       // simdgroups_per_threadgroup
};

constexpr uint32_t kLanes = 32;  // threads_per_simdgroup of every Apple GPU
constexpr uint32_t kQuadLanes = 4;

Lane* cur_lane();
TGInfo* cur_tg();

// ---- meeting points -----------------------------------------------------------------------------

enum Scope : int { kSimdgroup = 0, kThreadgroup = 1, kQuad = 2 };

// Runs once when all lanes of the scope that still run have arrived; cur_lane() is one of them.
// slots[i] is what lane i of the scope passed to rendezvous(); null where lane i is not part of the
// meeting (it exited, or waits elsewhere: then a finding was recorded). n is the number of lanes
// that the scope was launched with (a partial simdgroup has fewer than 32), n_active the non-null
// ones.
using Compute = void (*)(void** slots, int n, int n_active);

// Waits for the other lanes of the scope; compute exchanges their data. Lanes meet only in the same
// operation: the same `compute` called from the same `line`. `slot` must not be null and stays
// valid until the call returns. `what` is a string literal naming the Metal function, used in
// findings. `line` is the kernel's: give shim functions a last parameter `int line =
// __builtin_LINE()`. Zero is allowed and merges operations that diverged branches reach in
// different lines. A rendezvous does not order memory: only barrier() does.
// `expects` tells whether a meeting without some lanes that still run is a finding, or what the
// function is for (simd_active_threads_mask).
enum Expects : bool { kAllLanes = false, kAnyLanes = true };
void rendezvous(Scope scope, Compute compute, void* slot, const char* what, int line = 0,
                Expects expects = kAllLanes);

// Bits of metal::mem_flags that the race detector distinguishes.
enum MemoryFlags : uint32_t { kMemNone = 0, kMemDevice = 1, kMemThreadgroup = 2 };

// threadgroup_barrier, simdgroup_barrier, quadgroup_barrier; `flags` are the MemoryFlags it orders.
void barrier(Scope scope, uint32_t flags, const char* what, int line = 0);

// ---- threadgroup memory -------------------------------------------------------------------------

// Storage of one `threadgroup` variable, the same for every lane of the threadgroup, filled with
// 0xFF (NaN in every floating type) when the threadgroup first asks for it, and ended by a guard
// page. `key` identifies the variable: the address of any static object that exists once an
// instantiation.
void* tg_variable(const void* key, size_t bytes, const char* name);

// As tg_variable, for memory owned by the caller (`static thread_local T x;`): fills it once a
// threadgroup, counts it and lets detectors know it. No guard page.
void tg_register(void* p, size_t bytes, const char* name = "");

// The argument [[threadgroup(index)]], of the size given at the launch.
void* tg_dynamic(int index);

// ---- arguments ----------------------------------------------------------------------------------

// One buffer argument. Unbound: `data` points to inaccessible memory that is attributed to this
// index, `reference` to readable zeros, because compilers hoist loads through references out of
// branches that a function constant disabled.
struct Binding {
  void* data;
  void* reference;
};
constexpr int kBindings = 31;  // Metal's argument table for buffers

// The bindings have kBindings entries.
using Kernel = void (*)(const Binding* bindings);
// maxTotalThreadsPerThreadgroup of every Apple GPU.
constexpr int kMostThreads = 1024;
// `most_threads` is the kernel's max_total_threads_per_threadgroup.
void reg_kernel(const char* name, Kernel kernel, int most_threads);

struct KReg {
  KReg(const char* name, Kernel kernel, int most_threads = kMostThreads) {
    reg_kernel(name, kernel, most_threads);
  }
};

// A pointer or reference parameter of whatever type: emu::ArgPtr{b[3]}.
struct ArgPtr {
  Binding binding;
  template <class T>
  operator T*() const {
    return static_cast<T*>(binding.data);
  }
};
struct ArgRef {
  Binding binding;
  template <class T>
  operator T&() const {
    return *static_cast<T*>(binding.reference);
  }
};
struct ArgThreadgroup {
  int index;
  template <class T>
  operator T*() const {
    return static_cast<T*>(tg_dynamic(index));
  }
};

// ---- tensors that the host makes ----------------------------------------------------------------

constexpr int kTensorRank = 16;  // the highest that Metal has

// The tensor that a buffer holds, in the host's order: outermost dimension first, in elements.
struct TensorShape {
  int rank;  // 0: the host made no tensor of this buffer
  int element_bytes;
  int64_t extents[kTensorRank];
  int64_t strides[kTensorRank];
};
const TensorShape& tensor_shape(int index);
// Gives the launch up: the tensor at this index has another `what` than the parameter.
[[noreturn]] void wrong_tensor(int index, const char* what, int64_t wanted, int64_t got);

// A parameter of type tensor<..., tensor_handle>: emu::ArgTensor{b[3], 3}.
struct ArgTensor {
  Binding binding;
  int index;
  template <class T>
  operator T() const {
    return T::emu_bound(binding.data, index);
  }
};

// What the rewriter makes of t[i, j], which C++17 does not know. Where it means no element of a
// tensor it is what the comma operator gives.
template <size_t n>
struct Subscripts {
  long at[n];
  constexpr operator long() const { return at[n - 1]; }
};
template <class... I>
constexpr Subscripts<sizeof...(I)> subscripts(I... index) {
  return {{static_cast<long>(index)...}};
}

// ---- function constants -------------------------------------------------------------------------

// `constant T x [[function_constant(index)]]` is a plain global plus FcReg(index, &x).
void reg_fc(int index, void* p, size_t bytes, const char* name);
// is_function_constant_defined(x)
bool fc_defined(const void* p);
// Constants computed from function constants: evaluated in order of registration before each
// launch.
void reg_derived(void (*evaluate)());

struct FcReg {
  template <class T>
  FcReg(int index, T* p, const char* name = "") {
    reg_fc(index, const_cast<void*>(static_cast<const void*>(p)), sizeof(T), name);
  }
};
struct DerivedReg {
  explicit DerivedReg(void (*evaluate)()) { reg_derived(evaluate); }
};

// ---- findings -----------------------------------------------------------------------------------

// Records a finding about the lane that runs. Findings of the same kind, message and kernel line
// are counted, not repeated. `kind` is a stable identifier such as "tensor_oob".
void report(const char* kind, const char* message);
// The same for what is legal but worth knowing: it does not fail a launch.
void note(const char* kind, const char* message);
// As report, then gives up the launch: for states that a kernel cannot sensibly continue from.
[[noreturn]] void fault(const char* kind, const char* message);

// ---- costs --------------------------------------------------------------------------------------

struct Counters {
  uint64_t matmul_flops;            // by the shim, as all up to matmul_calls: 2 m n k an operation
  uint64_t simdgroup_matrix_flops;  // of these: by simdgroup_matrix
  uint64_t strict_float_flops;      // by matmul2d with a float operand, without relaxed_precision
  uint64_t integer_flops;           // by matmul2d into int32
  uint64_t matmul_calls;
  uint64_t threadgroup_barriers;  // by the runtime, from here on
  uint64_t simdgroup_barriers;
  uint64_t quadgroup_barriers;
  uint64_t simd_ops;                // collective operations of simdgroups, quads and threadgroups
  uint64_t threadgroup_bytes;       // threadgroup memory of the largest threadgroup
  uint64_t threadgroup_read_bytes;  // trace build only, as are the next three
  uint64_t threadgroup_written_bytes;
  uint64_t device_read_bytes;
  uint64_t device_written_bytes;
};

// Of this OS thread; summed at the end of the launch.
Counters& counters();

// Tells the detectors about memory that shim code is about to touch for the kernel: call it before
// a store, not after. Does nothing outside the trace build.
void account(const void* p, size_t bytes, bool store);
// An atomic read-modify-write, load or store: races only with plain accesses.
void account_atomic(const void* p, size_t bytes);

// In the build that follows values: whatever is in this memory, nobody has set it. `name` is what
// findings call it.
void forget(const void* p, size_t bytes, const char* name);

// ---- policies -----------------------------------------------------------------------------------

// How this launch decides what Metal leaves open. Constant during a launch.
const EmuPolicies& policies();
// A permutation of 0..n-1 that depends only on policies().seed and key. Valid until the thread
// ends.
const uint16_t* permutation(uint32_t key, int n);

}  // namespace emu

EMU_SHIM_END
