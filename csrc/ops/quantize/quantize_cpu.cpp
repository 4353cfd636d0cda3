#include <mlx/backend/cpu/encoder.h>

#include <algorithm>

#include "common/counters.h"
#include "common/integers.h"
#include "common/route.h"
#include "cpu/matrices.h"
#include "cpu/thread_pool.h"
#include "ops/quantize/quantize.h"
#include "ops/quantize/quantize_kernels.h"

namespace mto {
namespace {

// About 5 us of work: long against the cost of taking a task.
constexpr int64_t kTaskValues = 1 << 14;

}  // namespace

void Quantize::eval_cpu(const std::vector<mx::array>& inputs, std::vector<mx::array>& outputs) {
  if (eval_emulated(*this, stream(), inputs, outputs)) return;
  for (auto& out : outputs) out.set_data(mx::allocator::malloc(out.nbytes()));
  const auto& w = inputs[0];
  if (w.size() == 0) return;
  QuantizeParams params{};
  params.w_q = outputs[0].data<uint8_t>();
  params.scales = outputs[1].data<char>();
  params.biases = outputs[2].data<char>();
  params.type = *float_type(w.dtype());
  params.n_groups = w.size() / group_size_;
  params.bits = bits_;
  params.group_size = group_size_;
  count("quantize", "cpu", "fused");
  const auto& kernels = quantize_kernels(current_isa());
  mx::cpu::get_command_encoder(stream()).dispatch(
      [params, operand = Matrices(w, stream()), &kernels]() mutable {
        operand.load();
        params.w = operand[0];
        int64_t per_task = kTaskValues / params.group_size;
        parallel_for(ceil_div(params.n_groups, per_task), [&](int64_t task) {
          int64_t begin = task * per_task;
          kernels.groups(params, begin, std::min(begin + per_task, params.n_groups));
        });
      });
}

}  // namespace mto
