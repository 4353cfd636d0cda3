// Launches kernels of runtime_kernels.cpp and prints what came of it, as JSON objects. A program
// rather than a library, so that it can run under an emulator of another processor.

#include <stdio.h>

#include "emulator/abi.h"

namespace {

template <class T, int N>
void launch(const char* kernel, T (&out)[N], uint32_t threads, EmuPolicies policies = {}) {
  void* buffers[1] = {out};
  const size_t bytes[1] = {sizeof out};
  const uint32_t grid[3] = {2, 1, 1};
  const uint32_t threadgroup[3] = {threads, 1, 1};
  const int status =
      emu_launch(kernel, 1, buffers, bytes, 0, nullptr, grid, threadgroup, nullptr, &policies, 2);
  printf("{\"kernel\": \"%s\", \"status\": %d, \"findings\": %s, \"out\": [", kernel, status,
         emu_findings());
  for (int i = 0; i < N; ++i) printf(i == 0 ? "%d" : ", %d", static_cast<int>(out[i]));
  printf("]}\n");
}

}  // namespace

int main() {
  for (int order = EMU_FORWARD; order <= EMU_RANDOM; ++order) {
    int sums[210] = {};
    EmuPolicies policies = {};
    policies.order = order;
    launch("sums", sums, 70, policies);
  }
  float out[64] = {};
  launch("write_far_past_end", out, 32);
  launch("write_null", out, 4);
  launch("overflow_stack", out, 4);
  launch("barrier_after_exit", out, 64);
  launch("read_uninitialised", out, 32);
  EmuPolicies limited = {};
  limited.time_limit_ms = 200;
  int flag[1] = {};
  launch("hang", flag, 4, limited);
  int good[210] = {};
  launch("sums", good, 70);
}
