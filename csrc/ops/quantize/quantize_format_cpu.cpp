#include <mlx/backend/cpu/encoder.h>

#include <algorithm>
#include <limits>

#include "common/counters.h"
#include "common/integers.h"
#include "cpu/matrices.h"
#include "cpu/thread_pool.h"
#include "ops/quantize/quantize_format.h"
#include "ops/quantize/quantize_format_kernels.h"

namespace mto {

void QuantizeFormat::eval_gpu(const std::vector<mx::array>&, std::vector<mx::array>&) {
  throw std::runtime_error("[quantize] this format has no Metal kernel.");
}

void QuantizeFormat::eval_cpu(const std::vector<mx::array>& inputs,
                              std::vector<mx::array>& outputs) {
  for (auto& out : outputs) out.set_data(mx::allocator::malloc(out.nbytes()));
  const auto& w = inputs[0];
  count("quantize", "cpu", "fused");
  auto& encoder = mx::cpu::get_command_encoder(stream());
  auto w_q = outputs[0].data<uint8_t>();
  size_t n_bytes = outputs[0].nbytes();
  if (w.size() == 0) {
    // The mean of nothing.
    if (outputs[1].size() == 0 || outputs[1].dtype() != mx::float32) return;
    encoder.dispatch([data = outputs[1].data<float>(), n = outputs[1].size()] {
      std::fill(data, data + n, std::numeric_limits<float>::quiet_NaN());
    });
    return;
  }
  QuantizeFormatParams params{};
  params.w_q = w_q;
  params.scales = outputs[1].data<char>();
  params.type = *float_type(w.dtype());
  params.matrix = packed_matrix(call_, {outputs[0]});
  params.coding = call_.row->coding;
  params.scale_kind = call_.row->scales;
  params.of_mlx = known_to_mlx(call_);
  int64_t n_matrices = w.size() / (int64_t{w.shape(-1)} * w.shape(-2));
  int64_t rows = ceil_div(params.matrix.n_rows, params.matrix.group_rows);
  int64_t scales_bytes = outputs[1].nbytes() / n_matrices;
  int64_t w_bytes = int64_t{w.shape(-1)} * w.shape(-2) * w.itemsize();
  const auto& kernels = quantize_format_kernels(current_isa());
  std::vector<Matrices> operands;
  for (const auto& input : inputs) operands.emplace_back(input, stream());
  encoder.dispatch([=, operands = std::move(operands), &kernels]() mutable {
    for (auto& operand : operands) operand.load();
    std::fill(w_q, w_q + n_bytes, uint8_t{0});
    if (operands.size() > 1) params.matrix.global_scale = static_cast<const float*>(operands[1][0]);
    parallel_for(n_matrices * rows, [&](int64_t task) {
      int64_t i = task / rows, row = task % rows;
      auto one = params;
      one.w = static_cast<const char*>(operands[0][0]) + i * w_bytes;
      one.w_q += i * (n_bytes / n_matrices);
      one.scales = static_cast<char*>(params.scales) + i * scales_bytes;
      kernels.groups(one, row, row + 1);
    });
  });
}

}  // namespace mto
