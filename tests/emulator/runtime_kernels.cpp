// Small kernels written against the runtime directly, as the rewriter would emit them. Each shows
// one behaviour of the runtime, or has one planted fault that a detector must name.

#include "emulator/runtime.h"

using emu::ArgPtr;
using emu::ArgRef;
using emu::ArgThreadgroup;
using emu::Binding;

#define KERNEL(name)                             \
  static void name(const Binding* b);            \
  static emu::KReg register_##name(#name, name); \
  static void name([[maybe_unused]] const Binding* b)

// What a shim header does, with the least of it that the tests need.
EMU_SHIM_BEGIN
static void threadgroup_barrier(uint32_t flags = emu::kMemThreadgroup,
                                int line = __builtin_LINE()) {
  emu::barrier(emu::kThreadgroup, flags, "threadgroup_barrier", line);
}
static void simdgroup_barrier(uint32_t flags = emu::kMemThreadgroup, int line = __builtin_LINE()) {
  emu::barrier(emu::kSimdgroup, flags, "simdgroup_barrier", line);
}
struct Sum {
  int in;
  int out;
};
static void sum_lanes(void** slots, int n, int) {
  int sum = 0;
  for (int i = 0; i < n; ++i) sum += slots[i] != nullptr ? static_cast<Sum*>(slots[i])->in : 0;
  for (int i = 0; i < n; ++i) {
    if (slots[i] != nullptr) static_cast<Sum*>(slots[i])->out = sum;
  }
}
static int sum_of(emu::Scope scope, int value, const char* what, int line,
                  emu::Expects expects = emu::kAllLanes) {
  Sum sum{value, 0};
  emu::rendezvous(scope, sum_lanes, &sum, what, line, expects);
  return sum.out;
}
EMU_SHIM_END
static int simd_sum(int value, int line = __builtin_LINE()) {
  return sum_of(emu::kSimdgroup, value, "simd_sum", line);
}
static int active_lanes(int line = __builtin_LINE()) {
  return sum_of(emu::kSimdgroup, 1, "active_lanes", line, emu::kAnyLanes);
}
static int quad_sum(int value, int line = __builtin_LINE()) {
  return sum_of(emu::kQuad, value, "quad_sum", line);
}
static int threadgroup_sum(int value, int line = __builtin_LINE()) {
  return sum_of(emu::kThreadgroup, value, "threadgroup_sum", line);
}

static uint32_t thread() { return emu::cur_lane()->index; }

// ---- what must work ----

// Where every thread is: 12 numbers a thread, in order of its position in the grid.
KERNEL(positions) {
  uint32_t* out = ArgPtr{b[0]};
  const emu::Lane& lane = *emu::cur_lane();
  const emu::TGInfo& group = *emu::cur_tg();
  uint32_t at[3];
  for (int d = 0; d < 3; ++d) at[d] = group.position[d] * group.full_threads[d] + lane.position[d];
  const uint32_t* size = group.grid_threads;
  uint32_t* row = out + 12 * (at[0] + size[0] * (at[1] + size[1] * at[2]));
  for (int d = 0; d < 3; ++d) row[d] = at[d];
  for (int d = 0; d < 3; ++d) row[3 + d] = group.position[d];
  row[6] = lane.lane;
  row[7] = lane.simdgroup;
  row[8] = lane.index;
  row[9] = group.simdgroups;
  row[10] = group.threads[0];
  row[11] = group.grid[0];
}

KERNEL(sums) {
  int* out = ArgPtr{b[0]};
  const int i = static_cast<int>(thread());
  out[3 * i] = simd_sum(i);
  out[3 * i + 1] = quad_sum(i);
  out[3 * i + 2] = threadgroup_sum(i);
}

// A tree reduction over threadgroup memory: right under every order because of its barriers.
KERNEL(reduce) {
  const float* in = ArgPtr{b[0]};
  float* out = ArgPtr{b[1]};
  static char key;
  auto* partial = static_cast<float*>(emu::tg_variable(&key, 256 * sizeof(float), "partial"));
  const uint32_t i = thread();
  const uint32_t group = emu::cur_tg()->position[0];
  partial[i] = in[256 * group + i];
  for (uint32_t step = 128; step > 0; step /= 2) {
    threadgroup_barrier();
    if (i < step) partial[i] += partial[i + step];
  }
  if (i == 0) out[group] = partial[0];
}

// In which order threads and threadgroups come to a counter.
KERNEL(arrivals) {
  int* counter = ArgPtr{b[0]};
  int* order = ArgPtr{b[1]};
  order[(*counter)++] = static_cast<int>(emu::cur_tg()->position[0] * 64 + thread());
}

KERNEL(dynamic_memory) {
  float* out = ArgPtr{b[0]};
  float* shared = ArgThreadgroup{1};
  shared[thread()] = static_cast<float>(thread());
  threadgroup_barrier();
  out[thread()] = shared[31 - thread()];
}

struct Params {
  int scale;
  int offset;
};
KERNEL(references) {
  int* out = ArgPtr{b[0]};
  const Params& params = ArgRef{b[1]};
  const Params& unbound = ArgRef{b[2]};
  out[thread()] = static_cast<int>(thread()) * params.scale + params.offset + unbound.offset;
}

static int constant_scale;
static bool constant_flag;
static int derived_scale;
static emu::FcReg register_scale(4, &constant_scale, "constant_scale");
static emu::FcReg register_flag(7, &constant_flag, "constant_flag");
static emu::DerivedReg register_derived([] {
  derived_scale = emu::fc_defined(&constant_flag) ? 10 * constant_scale : -1;
});
KERNEL(constants) {
  int* out = ArgPtr{b[0]};
  out[0] = constant_scale;
  out[1] = constant_flag;
  out[2] = derived_scale;
}

KERNEL(policies) {
  int* out = ArgPtr{b[0]};
  const EmuPolicies& policies = emu::policies();
  out[0] = policies.layout;
  out[1] = policies.time_limit_ms;
  const uint16_t* order = emu::permutation(3, 29);
  for (int i = 0; i < 29; ++i) out[2 + i] = order[i];
}

KERNEL(counted) {
  static char key;
  emu::tg_variable(&key, 100, "counted");
  threadgroup_barrier();
  threadgroup_barrier(emu::kMemNone);
  simdgroup_barrier();
  simd_sum(1);
  emu::counters().matmul_flops += 7;
}

// Asks in two branches who is there.
KERNEL(active_in_branches) {
  int* out = ArgPtr{b[0]};
  if (thread() < 5) {
    out[thread()] = active_lanes();
  } else if (thread() < 30) {
    out[thread()] = active_lanes();
  }
}

// ---- planted faults ----

KERNEL(read_past_end) {
  const float* in = ArgPtr{b[0]};
  float* out = ArgPtr{b[1]};
  const uint32_t i = emu::cur_tg()->position[1] * 32 + thread();
  out[i] = in[i == 37 ? 64 : i];
}
KERNEL(write_past_end) {
  float* out = ArgPtr{b[0]};
  out[thread() == 5 ? 70 : thread()] = 1;
}
KERNEL(write_far_past_end) {
  float* out = ArgPtr{b[0]};
  out[thread() + (thread() == 5 ? 1000000 : 0)] = 1;
}
KERNEL(write_before_begin) {
  float* out = ArgPtr{b[0]};
  out[thread() == 3 ? -1 : static_cast<int>(thread())] = 1;
}
KERNEL(write_unbound) {
  float* out = ArgPtr{b[5]};
  out[thread()] = 1;
}
KERNEL(write_null) {
  float* volatile nowhere = nullptr;
  nowhere[thread()] = 1;
}
KERNEL(threadgroup_past_end) {
  static char key;
  auto* shared = static_cast<float*>(emu::tg_variable(&key, 32 * sizeof(float), "shared"));
  shared[thread() == 9 ? 33 : thread()] = 1;
}
KERNEL(divide_by_zero) {
  int* out = ArgPtr{b[0]};
  const volatile int divisor = static_cast<int>(thread()) - 4;
  out[thread()] = 100 / divisor;
}
KERNEL(trap) {
  if (thread() == 2) __builtin_trap();
}
static int recurse(int depth) {
  volatile int local[64] = {depth};
  return depth == 0 ? local[0] : recurse(depth - 1) + local[0];
}
KERNEL(overflow_stack) {
  int* out = ArgPtr{b[0]};
  out[0] = recurse(1 << 20);
}
KERNEL(fault_by_shim) {
  if (thread() == 8) emu::fault("planted", "the shim gave up");
  threadgroup_barrier();
}
KERNEL(read_uninitialised) {
  float* out = ArgPtr{b[0]};
  static char key;
  auto* shared = static_cast<float*>(emu::tg_variable(&key, 32 * sizeof(float), "shared"));
  if (thread() != 13) shared[thread()] = 1;
  threadgroup_barrier();
  out[emu::cur_tg()->position[0] * 32 + thread()] = shared[thread()];
}
KERNEL(too_much_memory) {
  static char keys[2];
  emu::tg_variable(&keys[0], 32 * 1024, "fits");
  if (emu::cur_tg()->position[0] == 1) emu::tg_variable(&keys[1], 1, "one_too_many");
}
KERNEL(divergent_barrier) {
  if (thread() < 16) {
    threadgroup_barrier();
  } else {
    threadgroup_barrier();
  }
}
KERNEL(divergent_simd_op) {
  int* out = ArgPtr{b[0]};
  if (thread() < 16) out[thread()] = simd_sum(1);
  threadgroup_barrier();
}
KERNEL(barrier_after_exit) {
  if (thread() == 40) return;
  threadgroup_barrier();
}
KERNEL(simd_op_after_exit) {
  int* out = ArgPtr{b[0]};
  if (thread() >= 20) return;
  out[thread()] = simd_sum(1);
}
KERNEL(reported_by_shim) {
  if (thread() % 2 == 1) emu::report("planted", "an odd thread");
}
static void complain(void**, int, int) { emu::report("planted", "an operation complains"); }
KERNEL(reported_by_operation) {
  static char present;
  emu::rendezvous(emu::kSimdgroup, complain, &present, "operation", __builtin_LINE());
}
// Waits for a threadgroup that cannot start before it ends.
KERNEL(hang) {
  volatile int* flag = ArgPtr{b[0]};
  while (*flag == 0) {
  }
}
