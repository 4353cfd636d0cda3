#include "emulator/abi.h"

#include <algorithm>
#include <cstring>

#include "registry.h"
#include "signals.h"
#include "stack_pool.h"
#include "team.h"
#include "worker.h"

namespace emu {
namespace {

// Of a launch: each costs two of the 65530 mappings that a process may have.
constexpr uint32_t kMostStacks = 16 * 1024;
constexpr size_t kWords = sizeof(Counters) / sizeof(uint64_t);

Counters total;
uint64_t read_bytes[kBindings];
uint64_t written_bytes[kBindings];

int refuse(const char* kind, const std::string& message) {
  Finding finding;
  finding.kind = kind;
  finding.message = message;
  findings().add(std::move(finding));
  return EMU_BAD_ARGUMENT;
}

std::string sizes_text(const uint32_t* sizes) {
  return "(" + text(sizes[0]) + ", " + text(sizes[1]) + ", " + text(sizes[2]) + ")";
}

int set_grid(Launch& launch, const uint32_t* grid, const uint32_t* threads,
             const uint32_t* threads_per_grid, uint64_t most_threads) {
  uint64_t n_threads = 1;
  for (int d = 0; d < 3; ++d) n_threads *= threads[d];
  if (n_threads == 0) return refuse("bad_launch", "threadgroup of size " + sizes_text(threads));
  if (n_threads > most_threads) {
    return refuse("threadgroup_too_large", text(n_threads) + " threads in a threadgroup " +
                                               sizes_text(threads) + ", the limit is " +
                                               text(most_threads));
  }
  for (int d = 0; d < 3; ++d) {
    launch.threads[d] = threads[d];
    launch.grid_threads[d] =
        threads_per_grid != nullptr ? threads_per_grid[d] : grid[d] * threads[d];
    launch.grid[d] = (launch.grid_threads[d] + threads[d] - 1) / threads[d];
    if (launch.grid[d] == 0) {
      return refuse("bad_launch", "grid of size " + sizes_text(launch.grid_threads));
    }
  }
  return EMU_OK;
}

// Sums, except for what is a maximum.
void add_counters(const Counters& part) {
  uint64_t words[2][kWords];
  const uint64_t largest = std::max(total.threadgroup_bytes, part.threadgroup_bytes);
  memcpy(words[0], &total, sizeof words[0]);
  memcpy(words[1], &part, sizeof words[1]);
  for (size_t i = 0; i < kWords; ++i) words[0][i] += words[1][i];
  memcpy(&total, words[0], sizeof words[0]);
  total.threadgroup_bytes = largest;
}

// False: no memory.
bool run(Launch& launch, int os_threads) {
  const SignalHandlers handlers;
  const uint64_t n_groups = uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
  const auto n_threads = launch.threads[0] * launch.threads[1] * launch.threads[2];
  const int enough_stacks = static_cast<int>(kMostStacks / n_threads);
  const int most =
      kTrace || kValues
          ? 1
          : std::clamp(os_threads, 1, std::min(enough_stacks, SignalHandlers::kMostWorkers));
  Team team(launch, static_cast<int>(std::min<uint64_t>(n_groups, most)));
  team.join();
  for (const auto& worker : team.workers()) {
    add_counters(worker->counters);
    for (int i = 0; i < kBindings; ++i) {
      read_bytes[i] += worker->tracer.read_bytes[i];
      written_bytes[i] += worker->tracer.written_bytes[i];
    }
  }
  return !team.out_of_memory();
}

}  // namespace
}  // namespace emu

using namespace emu;

uint32_t emu_abi_version() { return EMU_ABI_VERSION; }

const char* emu_kernels() {
  static std::string names;
  names.clear();
  for (const NamedKernel& kernel : kernels()) names += kernel.name + "\n";
  return names.c_str();
}

const char* emu_constants() {
  static std::string json;
  json = constants_json();
  return json.c_str();
}

int emu_set_constant(int index, const void* value, size_t bytes) {
  return set_constant(index, value, bytes);
}

void emu_clear_constants() { clear_constants(); }

int emu_set_tensor(int index, int rank, int element_bytes, const int64_t* extents,
                   const int64_t* strides) {
  if (rank < 0 || rank > kTensorRank) return -1;
  TensorShape shape = {};
  shape.rank = rank;
  shape.element_bytes = element_bytes;
  std::copy(extents, extents + rank, shape.extents);
  std::copy(strides, strides + rank, shape.strides);
  return set_tensor(index, shape);
}

void emu_clear_tensors() { clear_tensors(); }

void emu_share_stacks(void* memory) {
  static_assert(sizeof(StackPool) <= EMU_STACK_POOL_BYTES);
  set_stack_pool(static_cast<StackPool*>(memory));
}

int emu_launch(const char* kernel, int n_buffers, void* const* buffers, const size_t* bytes,
               int n_threadgroup, const size_t* threadgroup_bytes, const uint32_t* grid,
               const uint32_t* threadgroup, const uint32_t* threads_per_grid,
               const EmuPolicies* policies, int os_threads) {
  findings().clear(kernel);
  total = {};
  memset(read_bytes, 0, sizeof read_bytes);
  memset(written_bytes, 0, sizeof written_bytes);
  const NamedKernel* found = find_kernel(kernel);
  if (found == nullptr) return EMU_UNKNOWN_KERNEL;
  if (n_buffers > kBindings) {
    return refuse("bad_launch", "buffer index " + text(n_buffers - 1) + ", the highest is " +
                                    text(kBindings - 1));
  }
  Launch launch;
  launch.kernel = found->function;
  launch.policies = policies != nullptr ? *policies : EmuPolicies{};
  launch.threadgroup_bytes.assign(threadgroup_bytes, threadgroup_bytes + n_threadgroup);
  const int status = set_grid(launch, grid, threadgroup, threads_per_grid,
                              std::min(found->most_threads, kMostThreads));
  if (status != EMU_OK) return status;
  const bool guard_begin = launch.policies.guard_begin != 0;
  if (!launch.arena.map(n_buffers, buffers, bytes, guard_begin)) return EMU_NO_MEMORY;
  for (int i = 0; kTrace && i < kBindings; ++i) {
    const size_t size = launch.arena.bytes(i);
    if (size > 0 && !launch.shadows[i].map(size)) return EMU_NO_MEMORY;
  }
  evaluate_derived_constants();
  if (!run(launch, os_threads)) return EMU_NO_MEMORY;
  if (!kTrace) launch.arena.check_surroundings(findings());
  launch.arena.copy_back();
  return launch.given_up ? EMU_FAULT : EMU_OK;
}

const char* emu_findings() {
  static std::string json;
  json = findings().json();
  return json.c_str();
}

int emu_counters(uint64_t* out, int n) {
  memcpy(out, &total, sizeof(uint64_t) * std::min<size_t>(n, kWords));
  return static_cast<int>(kWords);
}

void emu_buffer_bytes(uint64_t read[31], uint64_t written[31]) {
  memcpy(read, read_bytes, sizeof read_bytes);
  memcpy(written, written_bytes, sizeof written_bytes);
}

int emu_is_trace() { return kTrace ? 1 : 0; }
