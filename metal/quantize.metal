#include <metal_stdlib>

#include "formats/affine.h"
#include "tile/packed.h"

using namespace metal;

// Below this the scale would make codes of rounding noise.
constant constexpr float kMinScale = 1e-7f;

// Of a value in each lane, over lanes that are `Lanes` neighbours.
template <int Lanes>
float lowest(float value) {
  for (int step = Lanes / 2; step > 0; step /= 2) value = min(value, simd_shuffle_xor(value, step));
  return value;
}

// The sign of the first zero of the group: the bias of 1 bit keeps it.
template <int Lanes>
float first_zero(const thread float* values, uint lane) {
  uint first = Lanes * mto::kRun;
  for (int j = mto::kRun - 1; j >= 0; --j) {
    if (values[j] == 0.0f) first = lane % Lanes * mto::kRun + j;
  }
  float zero = 0.0f;
  for (int j = 0; j < mto::kRun; ++j) {
    if (first % mto::kRun == uint(j) && first < uint(Lanes * mto::kRun)) zero = values[j];
  }
  for (int step = Lanes / 2; step > 0; step /= 2) {
    uint other_first = simd_shuffle_xor(first, step);
    float other_zero = simd_shuffle_xor(zero, step);
    zero = other_first < first ? other_zero : zero;
    first = min(first, other_first);
  }
  return zero;
}

// The scale maps the value of largest magnitude, the edge, exactly to a code; it is negative where
// the edge is the maximum. 1 bit stores the two extremes themselves. MLX's rule, one rounding a
// step.
template <int Bits>
float2 scale_and_bias(float low, float high) {
  float scale = (high - low) / float((1 << Bits) - 1);
  scale = scale < kMinScale ? kMinScale : scale;
  if (Bits == 1) return float2(scale, low);
  bool negative_edge = fabs(low) > fabs(high);
  float edge = negative_edge ? low : high;
  scale = negative_edge ? scale : -scale;
  float edge_code = rint(edge / scale), exact = edge / edge_code;
  return edge_code == 0.0f ? float2(scale, 0.0f) : float2(exact, edge);
}

// w_q, scales and biases of w [n_groups, GroupSize]. A lane has a run of 8 values, neighbouring
// lanes share a group. NaN values become code 0 and never an extreme.
template <typename T, int Bits, int GroupSize>
[[kernel]] void quantize_affine(const device T* w [[buffer(0)]], device uchar* w_q [[buffer(1)]],
                                device T* scales [[buffer(2)]], device T* biases [[buffer(3)]],
                                constant int64_t& n_runs [[buffer(4)]],
                                uint group [[threadgroup_position_in_grid]],
                                uint thread_in_group [[thread_index_in_threadgroup]],
                                uint lane [[thread_index_in_simdgroup]],
                                uint n_threads [[threads_per_threadgroup]]) {
  constexpr int kLanes = GroupSize / mto::kRun;
  int64_t i = int64_t(group) * n_threads + thread_in_group;
  // Lanes without a run take part in the shuffles of the others.
  bool live = i < n_runs;
  float values[mto::kRun];
  float low = INFINITY, high = -INFINITY;
  for (int j = 0; j < mto::kRun; ++j) {
    values[j] = live ? float(w[i * mto::kRun + j]) : 0.0f;
    low = values[j] < low ? values[j] : low;
    high = values[j] > high ? values[j] : high;
  }
  low = lowest<kLanes>(low);
  high = -lowest<kLanes>(-high);
  if (Bits == 1) {
    float zero = first_zero<kLanes>(values, lane);
    low = low == 0.0f ? zero : low;
  }
  float2 parameters = scale_and_bias<Bits>(low, high);
  ulong run = 0;
  for (int j = 0; j < mto::kRun; ++j) {
    float code = rint((values[j] - parameters[1]) / parameters[0]);
    code = code > 0.0f ? code : 0.0f;
    run |= ulong(min(code, float((1 << Bits) - 1))) << (j * Bits);
  }
  if (!live) return;
  mto::store_run<Bits>(run, w_q + i * Bits);
  if (lane % kLanes == 0) {
    scales[i / kLanes] = T(parameters[0]);
    biases[i / kLanes] = T(parameters[1]);
  }
}
