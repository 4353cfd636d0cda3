// Kernels for the trace build. Every barrier of the reference kernels has a number; the function
// constant 0 takes one of them away, which must be seen.

#include "emulator/runtime.h"

using emu::ArgPtr;
using emu::Binding;
using emu::kMemDevice;
using emu::kMemNone;
using emu::kMemThreadgroup;

#define KERNEL(name)                             \
  static void name(const Binding* b);            \
  static emu::KReg register_##name(#name, name); \
  static void name([[maybe_unused]] const Binding* b)

#define THREADGROUP(type, name, n) \
  static char name##_key;          \
  type* name = static_cast<type*>(emu::tg_variable(&name##_key, (n) * sizeof(type), #name))

static int mutant;
static emu::FcReg register_mutant(0, &mutant, "mutant");

EMU_SHIM_BEGIN
static void threadgroup_barrier(uint32_t flags = kMemThreadgroup, int line = __builtin_LINE()) {
  emu::barrier(emu::kThreadgroup, flags, "threadgroup_barrier", line);
}
static void simdgroup_barrier(uint32_t flags = kMemThreadgroup, int line = __builtin_LINE()) {
  emu::barrier(emu::kSimdgroup, flags, "simdgroup_barrier", line);
}
static void quadgroup_barrier(uint32_t flags = kMemThreadgroup, int line = __builtin_LINE()) {
  emu::barrier(emu::kQuad, flags, "quadgroup_barrier", line);
}
static void meet_only(void**, int, int) {}
// Any collective operation of a simdgroup: it makes its threads wait, but orders no memory.
static void simd_op(int line = __builtin_LINE()) {
  static char present;
  emu::rendezvous(emu::kSimdgroup, meet_only, &present, "simd_op", line);
}
// The shim reads a tile on behalf of a whole simdgroup.
static float shim_load(const float* p) {
  emu::account(p, sizeof *p, false);
  return *p;
}
// An operation of a simdgroup that stores for all its threads.
static float* destination;
static void store_ones(void** slots, int n, int) {
  for (int i = 0; i < n; ++i) {
    emu::account(&destination[i], sizeof(float), true);
    destination[i] = slots[i] != nullptr;
  }
}
static void simd_store(float* p, int line = __builtin_LINE()) {
  static char present;
  destination = p;
  emu::rendezvous(emu::kSimdgroup, store_ones, &present, "simd_store", line);
}
static void atomic_add(int* p, int value) {
  emu::account_atomic(p, sizeof *p);
  __atomic_fetch_add(p, value, __ATOMIC_RELAXED);
}
EMU_SHIM_END

#define BARRIER(number, ...) \
  if (mutant != (number)) threadgroup_barrier(__VA_ARGS__)
#define SIMD_BARRIER(number, ...) \
  if (mutant != (number)) simdgroup_barrier(__VA_ARGS__)

#define QUAD_BARRIER(number) \
  if (mutant != (number)) quadgroup_barrier()

static uint32_t thread() { return emu::cur_lane()->index; }
static uint32_t group() { return emu::cur_tg()->position[0]; }

// ---- reference kernels: right as they are, wrong without any one of their barriers ----

// out[g] = sum of 128 numbers, as a tree.
KERNEL(reduce) {
  const float* in = ArgPtr{b[0]};
  float* out = ArgPtr{b[1]};
  THREADGROUP(float, partial, 128);
  const uint32_t i = thread();
  partial[i] = in[128 * group() + i];
  BARRIER(1);
  for (uint32_t step = 64; step > 0; step /= 2) {
    if (i < step) partial[i] += partial[i + step];
    BARRIER(2);
  }
  if (i == 0) out[group()] = partial[0];
}

// Inclusive sums by doubling: a barrier after the loads and one after the stores of a step.
KERNEL(scan) {
  const float* in = ArgPtr{b[0]};
  float* out = ArgPtr{b[1]};
  THREADGROUP(float, sums, 128);
  const uint32_t i = thread();
  sums[i] = in[128 * group() + i];
  BARRIER(1);
  for (uint32_t step = 1; step < 128; step *= 2) {
    const float other = i >= step ? sums[i - step] : 0;
    BARRIER(2);
    sums[i] += other;
    BARRIER(3);
  }
  out[128 * group() + i] = sums[i];
}

// out = in * in^T for an 8 x 64 matrix, staged through tiles of 8 x 16 that are used again: a
// barrier before and after the multiplication. 64 threads, one element each.
KERNEL(tiles) {
  const float* in = ArgPtr{b[0]};
  float* out = ArgPtr{b[1]};
  THREADGROUP(float, tile, 8 * 16);
  const uint32_t row = thread() / 8, column = thread() % 8;
  float sum = 0;
  for (uint32_t k = 0; k < 64; k += 16) {
    for (uint32_t j = column; j < 16; j += 8) tile[16 * row + j] = in[64 * row + k + j];
    BARRIER(1);
    for (uint32_t j = 0; j < 16; ++j) sum += tile[16 * row + j] * tile[16 * column + j];
    BARRIER(2);
  }
  out[thread()] = sum;
}

// Each simdgroup reverses 32 numbers twice through memory of its own: simdgroup barriers are
// enough.
KERNEL(reverse_in_simdgroup) {
  const float* in = ArgPtr{b[0]};
  float* out = ArgPtr{b[1]};
  THREADGROUP(float, exchange, 64);
  const uint32_t lane = emu::cur_lane()->lane;
  float* mine = exchange + 32 * emu::cur_lane()->simdgroup;
  mine[lane] = in[thread()];
  SIMD_BARRIER(1);
  simd_op();
  const float once = mine[31 - lane];
  simd_op();
  SIMD_BARRIER(2);
  mine[lane] = once;
  SIMD_BARRIER(3);
  simd_op();
  out[thread()] = mine[31 - lane];
}

// Each quadgroup reverses 4 numbers twice: quadgroup barriers are enough. Mutants 4 and 5 read from
// and write to another quadgroup, which they do not order.
KERNEL(reverse_in_quadgroup) {
  const float* in = ArgPtr{b[0]};
  float* out = ArgPtr{b[1]};
  THREADGROUP(float, exchange, 64);
  const uint32_t me = thread();
  const uint32_t other = me ^ 3;
  exchange[me] = in[me];
  QUAD_BARRIER(1);
  const float once = exchange[mutant == 4 ? other ^ 4 : other];
  QUAD_BARRIER(2);
  exchange[mutant == 5 ? me ^ 4 : me] = once;
  QUAD_BARRIER(3);
  out[me] = exchange[other];
}

// Neighbours exchange through device memory. Mutant 2 orders the wrong kind of memory, mutant 3
// none.
KERNEL(device_exchange) {
  float* scratch = ArgPtr{b[0]};
  float* out = ArgPtr{b[1]};
  const uint32_t first = 64 * group();
  scratch[first + thread()] = static_cast<float>(thread());
  BARRIER(1, mutant == 2 ? kMemThreadgroup : mutant == 3 ? kMemNone : kMemDevice);
  out[first + thread()] = scratch[first + (thread() + 33) % 64];
}

// A histogram: atomics do not race with each other, the plain reads come after a barrier.
KERNEL(histogram) {
  const int* in = ArgPtr{b[0]};
  int* out = ArgPtr{b[1]};
  THREADGROUP(int, bins, 4);
  if (thread() < 4) bins[thread()] = 0;
  BARRIER(1);
  atomic_add(&bins[in[64 * group() + thread()]], 1);
  BARRIER(2);
  if (thread() < 4) atomic_add(&out[thread()], bins[thread()]);
}

// ---- planted faults ----

// 13 floats fit in the slack of 16-byte alignment: only the trace build sees the 14th.
KERNEL(read_slack) {
  const float* in = ArgPtr{b[0]};
  float* out = ArgPtr{b[1]};
  out[thread()] = in[thread() == 3 ? 13 : thread()];
}
KERNEL(write_slack) {
  float* out = ArgPtr{b[0]};
  out[thread() == 3 ? 13 : thread()] = 1;
}
struct alignas(16) Four {
  float x[4];
};
KERNEL(read_half_outside) {
  const float* in = ArgPtr{b[0]};
  Four* out = ArgPtr{b[1]};
  out[0] = *reinterpret_cast<const Four*>(in + 12);
}
KERNEL(read_far_outside) {
  const float* in = ArgPtr{b[0]};
  float* out = ArgPtr{b[1]};
  out[0] = in[100000];
}
KERNEL(copy_outside) {
  const float* in = ArgPtr{b[0]};
  float* out = ArgPtr{b[1]};
  for (int i = 0; i < 14; ++i) out[i] = in[i];
}
KERNEL(threadgroup_slack) {
  THREADGROUP(float, shared, 5);
  shared[thread()] = 1;
}
KERNEL(threadgroup_before) {
  THREADGROUP(float, shared, 32);
  shared[static_cast<int>(thread()) - 1] = 1;
}
KERNEL(uninitialised) {
  float* out = ArgPtr{b[0]};
  THREADGROUP(float, shared, 32);
  if (group() == 0 || thread() != 7) shared[thread()] = 1;
  threadgroup_barrier();
  out[32 * group() + thread()] = shared[thread()];
}
KERNEL(groups_write_one_place) {
  float* out = ArgPtr{b[0]};
  if (thread() == 0) out[group() / 2] = static_cast<float>(group() + 1);
}
KERNEL(groups_write_the_same) {
  float* out = ArgPtr{b[0]};
  if (thread() == 0) out[group() / 2] = 5;
}
KERNEL(groups_read_what_one_writes) {
  float* data = ArgPtr{b[0]};
  float* out = ArgPtr{b[1]};
  if (group() == 2) {
    data[thread()] = 1;
  } else {
    out[32 * group() + thread()] = data[thread()];
  }
}
KERNEL(groups_mix_atomic_and_plain) {
  int* data = ArgPtr{b[0]};
  if (group() == 1) {
    data[0] = 1;
  } else {
    atomic_add(&data[0], 1);
  }
}
KERNEL(read_by_shim) {
  float* out = ArgPtr{b[0]};
  THREADGROUP(float, shared, 32);
  shared[thread()] = 1;
  simd_op();
  out[thread()] = shim_load(&shared[31 - thread()]);
}
KERNEL(read_what_an_operation_stored) {
  float* out = ArgPtr{b[0]};
  THREADGROUP(float, shared, 32);
  simd_store(shared);
  out[thread()] = shared[thread()];
}
static float* leaked;
KERNEL(local_of_another_thread) {
  float* out = ArgPtr{b[0]};
  volatile float local[4] = {1, 2, 3, 4};
  if (thread() == 0) leaked = const_cast<float*>(local);
  threadgroup_barrier();
  out[thread()] = leaked[1] + local[2];
}
