#include <mlx/backend/cpu/encoder.h>

#include <algorithm>

#include "common/counters.h"
#include "common/integers.h"
#include "common/route.h"
#include "cpu/packed_operands.h"
#include "cpu/thread_pool.h"
#include "formats/format_kernels.h"
#include "ops/dequantize/dequantize_format.h"
#include "ops/dequantize/dequantize_kernels.h"

namespace mto {
namespace {

// As in dequantize_cpu.cpp.
constexpr int64_t kTaskValues = 1 << 14;

}  // namespace

void DequantizeFormat::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  if (eval_emulated(*this, stream(), inputs, {out})) return;
  out.set_data(mx::allocator::malloc(out.nbytes()));
  if (out.size() == 0) return;
  count("dequantize", "cpu", "fused");
  auto matrix = packed_matrix(call_, inputs);
  auto isa = current_isa();
  DecodedRow row{matrix, format_kernels(isa).decoder(call_.row->name, call_.bits, matrix.layout),
                 out.data<char>(), *float_type(out.dtype())};
  mx::Shape batch(out.shape().begin(), out.shape().end() - 2);
  std::vector<Matrices> operands;
  for (const auto& input : inputs) operands.emplace_back(input, batch, stream());
  int64_t n_rows = out.size() / matrix.n_cols;
  bool affine = call_.affine();
  auto decode = dequantize_kernels(isa).row;
  mx::cpu::get_command_encoder(stream()).dispatch(
      [row, operands = std::move(operands), n_rows, affine, decode]() mutable {
        for (auto& operand : operands) operand.load();
        int64_t per_task = std::max<int64_t>(1, kTaskValues / row.matrix.n_cols);
        parallel_for(ceil_div(n_rows, per_task), [&](int64_t task) {
          for (int64_t i = task * per_task; i < std::min((task + 1) * per_task, n_rows); ++i) {
            auto one = row;
            point_at_operands(one.matrix, operands, 0, affine, i / row.matrix.n_rows);
            decode(one, i % row.matrix.n_rows, i * row.matrix.n_cols);
          }
        });
      });
}

}  // namespace mto
