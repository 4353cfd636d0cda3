#include <algorithm>
#include <limits>

#include "common/counters.h"
#include "common/integers.h"
#include "metal/format_binding.h"
#include "ops/quantized_matmul/quantized_matmul_format.h"
#include "ops/quantized_matmul/quantized_matmul_metal_params.h"
#include "ops/quantized_matmul/quantized_matmul_metal_variant.h"

namespace mto {
namespace {

using Params = QuantizedMatmulMetalParams;
using Variant = QuantizedMatmulVariant;

// As for the affine format, with fewer rows beside each other.
Variant variant_of(const Params& params, bool transpose) {
  auto variant = quantized_matmul_variant(params.m, params.n, params.k, transpose);
  if (variant.kind == Variant::kFewRows) {
    variant.rows = std::min<int>(variant.rows, kFormatRowsMax);
    variant.cols = transpose ? 4 * kFormatSimdgroups : 256;  // of a threadgroup
  }
  return variant;
}

}  // namespace

void QuantizedMatmulFormat::eval_gpu(const std::vector<mx::array>& inputs, mx::array& out) {
  std::vector<mx::array> outputs{out};
  eval_metal(*metal::gpu_encoder(stream()), inputs, outputs);
}

void QuantizedMatmulFormat::eval_metal(metal::Encoder& encoder,
                                       const std::vector<mx::array>& inputs,
                                       std::vector<mx::array>& outputs) {
  auto& out = outputs[0];
  encoder.allocate(out);
  if (out.size() == 0) return;
  count("quantized_matmul", "metal", "fused");
  const auto& x = inputs[0];
  std::vector<mx::array> packed(inputs.begin() + 1, inputs.end());
  Params params{out.shape(-2), out.shape(-1), x.shape(-1), 0};
  int64_t n_batch = out.size() / (int64_t{params.m} * params.n);
  bool one_matrix = std::all_of(packed.begin(), packed.end(), [](const mx::array& a) {
    return static_cast<int64_t>(a.size()) == int64_t{a.shape(-1)} * a.shape(-2);
  });
  bool all_rows = static_cast<int64_t>(x.size()) == n_batch * params.m * params.k;
  mx::Shape batch(out.shape().begin(), out.shape().end() - 2);
  if (one_matrix && all_rows && n_batch * params.m <= std::numeric_limits<int32_t>::max()) {
    params.m *= n_batch;
    n_batch = 1;
    batch.clear();
  }
  auto table = metal::format_table(batch, {x}, packed);
  params.n_batch_dims = table.n_dims;
  auto variant = variant_of(params, transpose_);
  metal::Size threads, threadgroups;
  if (variant.kind == Variant::kFewRows) {
    auto function = std::string("quantized_matmul_format_few_rows_") + (transpose_ ? "t" : "n");
    encoder.pipeline(metal::format_kernel("quantized_matmul_format_few_rows", function, call_,
                                          packed, x.dtype(), variant.rows));
    threadgroups = {ceil_div(params.n, variant.cols), ceil_div(params.m, variant.rows), n_batch};
    threads = {(transpose_ ? kFormatSimdgroups : kFewRowsSplits) * 32};
  } else {
    // See quantized_matmul_metal.cpp.
    bool relaxed = tf32_ || x.dtype() != mx::float32;
    encoder.pipeline(metal::format_kernel(
        "quantized_matmul_format", "quantized_matmul_format_tiles", call_, packed, x.dtype(),
        transpose_, variant.rows, variant.cols, params.k % kTileStep == 0, relaxed));
    threadgroups = {ceil_div(params.n, variant.cols * kTileSimdgroups),
                    ceil_div(params.m, variant.rows), n_batch};
    threads = {kTileSimdgroups * 32};
  }
  metal::bind_packed(encoder, call_, packed);
  encoder.bytes(table.data.data(), table.data.size() * sizeof(int64_t), 4);
  encoder.value(params, 5);
  encoder.input(x, 6);
  encoder.output(out, 7);
  encoder.dispatch(threadgroups, threads);
}

}  // namespace mto
