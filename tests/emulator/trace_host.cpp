// As runtime_host.cpp, with kernels of trace_kernels.cpp: what only the build finds that watches
// accesses.

#include <stdio.h>

#include "emulator/abi.h"

namespace {

void launch(const char* kernel, int mutant, size_t bytes, uint32_t threads, uint32_t groups) {
  static float in[3 * 128];
  static float out[3 * 128];
  for (int i = 0; i < 3 * 128; ++i) in[i] = static_cast<float>(i % 7);
  void* buffers[2] = {in, out};
  const size_t sizes[2] = {bytes, sizeof out};
  const uint32_t grid[3] = {groups, 1, 1};
  const uint32_t threadgroup[3] = {threads, 1, 1};
  emu_set_constant(0, &mutant, sizeof mutant);
  const int status =
      emu_launch(kernel, 2, buffers, sizes, 0, nullptr, grid, threadgroup, nullptr, nullptr, 1);
  uint64_t read[31];
  uint64_t written[31];
  emu_buffer_bytes(read, written);
  printf("{\"kernel\": \"%s\", \"mutant\": %d, \"status\": %d, \"findings\": %s, ", kernel, mutant,
         status, emu_findings());
  printf("\"read\": %d, \"written\": %d, \"out\": %d}\n", static_cast<int>(read[0]),
         static_cast<int>(written[1]), static_cast<int>(out[0]));
}

}  // namespace

int main() {
  for (int mutant = 0; mutant <= 2; ++mutant) launch("reduce", mutant, 3 * 128 * 4, 128, 3);
  launch("read_slack", 0, 13 * 4, 4, 1);
  launch("read_far_outside", 0, 13 * 4, 1, 1);
  launch("threadgroup_slack", 0, 4, 6, 1);
  launch("uninitialised", 0, 3 * 128 * 4, 32, 2);
}
