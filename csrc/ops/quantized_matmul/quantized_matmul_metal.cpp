#include <algorithm>
#include <limits>

#include "common/counters.h"
#include "common/integers.h"
#include "metal/batch_table.h"
#include "metal/instance.h"
#include "ops/quantized_matmul/quantized_matmul.h"
#include "ops/quantized_matmul/quantized_matmul_metal_params.h"
#include "ops/quantized_matmul/quantized_matmul_metal_variant.h"

namespace mto {
namespace {

using Params = QuantizedMatmulMetalParams;
using Variant = QuantizedMatmulVariant;

constexpr int64_t kLanes = 32;

struct Format {
  int bits, group_size;
  bool transpose, tf32;
};

metal::Kernel kernel_of(const Variant& variant, const Params& params, const Format& format,
                        const std::vector<mx::array>& inputs) {
  auto x = inputs[0].dtype(), scales = inputs[2].dtype(), biases = inputs[3].dtype();
  const auto& [bits, group_size, transpose, tf32] = format;
  if (variant.kind == Variant::kFewRows) {
    auto function = std::string("quantized_matmul_few_rows_") + (transpose ? "t" : "n");
    return {"quantized_matmul_few_rows", metal::instance(function, x, scales, biases, bits,
                                                         group_size, variant.rows, variant.cols)};
  }
  // It concerns products of float32 alone, yet MLX's kernels, which ship for M5, set it always.
  bool relaxed = tf32 || x != mx::float32;
  return {"quantized_matmul",
          metal::instance("quantized_matmul_tiles", x, scales, biases, bits, group_size, transpose,
                          variant.rows, variant.cols, params.m % variant.rows == 0,
                          params.k % kTileStep == 0, relaxed)};
}

// Threadgroups for one product, and their threads.
std::pair<metal::Size, metal::Size> grid_of(const Variant& variant, const Params& params,
                                            bool transpose) {
  int64_t cols = variant.cols, simdgroups = kTileSimdgroups;
  if (variant.kind == Variant::kFewRows && transpose) {
    simdgroups = few_rows_simdgroups(variant.rows);
    cols *= simdgroups;
  } else if (variant.kind == Variant::kFewRows) {
    simdgroups = kFewRowsSplits;
    cols *= kLanes;
  } else {
    cols *= simdgroups;
  }
  return {{ceil_div(params.n, cols), ceil_div(params.m, variant.rows)}, {simdgroups * kLanes}};
}

}  // namespace

void QuantizedMatmul::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
  std::vector<mx::array> outputs{out};
  eval_metal(*metal::gpu_encoder(stream()), inputs, outputs);
}

void QuantizedMatmul::eval_metal(metal::Encoder& encoder, const std::vector<mx::array>& inputs,
                                 std::vector<mx::array>& outputs) {
  auto& out = outputs[0];
  encoder.allocate(out);
  if (out.size() == 0) return;
  count("quantized_matmul", "metal", "fused");

  const auto& x = inputs[0];
  Params params{out.shape(-2), out.shape(-1), x.shape(-1), 0};
  int64_t n_batch = out.size() / (int64_t{params.m} * params.n);
  bool one_matrix = std::all_of(inputs.begin() + 1, inputs.end(), [](const mx::array& a) {
    return static_cast<int64_t>(a.size()) == int64_t{a.shape(-1)} * a.shape(-2);
  });
  bool all_rows = static_cast<int64_t>(x.size()) == n_batch * params.m * params.k;
  std::vector<int64_t> table;
  if (one_matrix && all_rows && n_batch * params.m <= std::numeric_limits<int32_t>::max()) {
    params.m *= n_batch;
    n_batch = 1;
  } else {
    table = metal::batch_table({out.shape().begin(), out.shape().end() - 2}, inputs);
  }
  params.n_batch_dims = table.size() / (1 + inputs.size());
  if (table.empty()) table.resize(1);  // there has to be something to bind

  auto variant = quantized_matmul_variant(params.m, params.n, params.k, transpose_);
  encoder.pipeline(kernel_of(variant, params, {bits_, group_size_, transpose_, tf32_}, inputs));
  for (int i = 0; i < 4; ++i) encoder.input(inputs[i], i);
  encoder.output(out, 4);
  encoder.value(params, 5);
  encoder.bytes(table.data(), table.size() * sizeof(int64_t), 6);
  auto [threadgroups, threads] = grid_of(variant, params, transpose_);
  threadgroups.z = n_batch;
  encoder.dispatch(threadgroups, threads);
}

}  // namespace mto
