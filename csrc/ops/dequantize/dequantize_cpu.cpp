#include <mlx/backend/cpu/encoder.h>

#include <algorithm>

#include "common/counters.h"
#include "common/integers.h"
#include "common/route.h"
#include "cpu/matrices.h"
#include "cpu/thread_pool.h"
#include "ops/dequantize/dequantize.h"
#include "ops/dequantize/dequantize_kernels.h"

namespace mto {
namespace {

// About 16 K values a task: long against the cost of taking one, and inside the L2.
constexpr int64_t kTaskValues = 1 << 14;

}  // namespace

void Dequantize::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  if (eval_emulated(*this, stream(), inputs, {out})) return;
  out.set_data(mx::allocator::malloc(out.nbytes()));
  if (out.size() == 0) return;
  DequantizeParams params{};
  params.out = out.data<char>();
  params.scales_type = *float_type(inputs[1].dtype());
  params.biases_type = *float_type(inputs[2].dtype());
  params.out_type = *float_type(out.dtype());
  params.n_cols = out.shape(-1);
  params.n_rows = out.size() / params.n_cols;
  params.bits = bits_;
  params.group_size = group_size_;
  std::vector<Matrices> operands;
  for (const auto& input : inputs) operands.emplace_back(input, stream());
  count("dequantize", "cpu", "fused");
  const auto& kernels = dequantize_kernels(current_isa());
  mx::cpu::get_command_encoder(stream()).dispatch(
      [params, operands = std::move(operands), &kernels]() mutable {
        for (auto& operand : operands) operand.load();
        params.w = static_cast<const uint8_t*>(operands[0][0]);
        params.scales = operands[1][0];
        params.biases = operands[2][0];
        int64_t n_groups = params.n_rows * params.n_cols / params.group_size;
        int64_t per_task = kTaskValues / params.group_size;
        parallel_for(ceil_div(n_groups, per_task), [&](int64_t task) {
          int64_t begin = task * per_task;
          kernels.groups(params, begin, std::min(begin + per_task, n_groups));
        });
      });
}

}  // namespace mto
