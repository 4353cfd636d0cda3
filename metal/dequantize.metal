#include <metal_stdlib>

#include "formats/affine.h"
#include "tile/packed.h"

using namespace metal;

// out [n_runs, 8] = decoded w, rounded once to T. A thread decodes one run.
template <typename S, typename B, typename T, int Bits, int GroupSize>
[[kernel]] void dequantize_affine(const device uchar* w [[buffer(0)]],
                                  const device S* scales [[buffer(1)]],
                                  const device B* biases [[buffer(2)]], device T* out [[buffer(3)]],
                                  constant int64_t& n_runs [[buffer(4)]],
                                  uint group [[threadgroup_position_in_grid]],
                                  uint thread_in_group [[thread_index_in_threadgroup]],
                                  uint n_threads [[threads_per_threadgroup]]) {
  int64_t i = int64_t(group) * n_threads + thread_in_group;
  if (i >= n_runs) return;
  ulong run = mto::load_run<Bits>(w + i * Bits);
  float scale = scales[i / (GroupSize / mto::kRun)], bias = biases[i / (GroupSize / mto::kRun)];
  for (int j = 0; j < mto::kRun; ++j) {
    out[i * mto::kRun + j] = T(fma(mto::affine_code<Bits>(run, j), scale, bias));
  }
}
