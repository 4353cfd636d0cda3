#include <mlx/backend/cpu/encoder.h>

#include <algorithm>

#include "common/counters.h"
#include "common/integers.h"
#include "common/route.h"
#include "cpu/matrices.h"
#include "cpu/thread_pool.h"
#include "ops/quantized_matmul/quantized_matmul.h"
#include "ops/quantized_matmul/quantized_matmul_kernels.h"
#include "ops/quantized_matmul/quantized_matmul_tiles.h"

namespace mto {
namespace {

// One product after another, or all at once, cut into tasks; see quantized_matmul_tiles.h.
class Launch {
 public:
  Launch(const QuantizedMatmulKernels& kernels, QuantizedMatmulParams params,
         std::vector<Matrices> inputs, int64_t n_batch, char* out, float* x_f32)
      : kernels_(kernels),
        params_(params),
        inputs_(std::move(inputs)),
        n_batch_(n_batch),
        out_(out),
        x_f32_(x_f32) {}

  void operator()() {
    for (auto& input : inputs_) input.load();
    params_.m <= kernels_.few_rows_max ? few_rows() : tiles();
  }

 private:
  QuantizedMatmulParams batch(int64_t i) const {
    auto params = params_;
    params.x = inputs_[0][i];
    params.w = static_cast<const uint8_t*>(inputs_[1][i]);
    params.scales = inputs_[2][i];
    params.biases = inputs_[3][i];
    params.y = out_ + i * params.m * params.n * size_of(params.x_type);
    return params;
  }

  void run(int64_t n_tasks, const std::function<void(int64_t)>& task) const {
    if (params_.m * params_.n * params_.k * n_batch_ >= kSerialWork)
      return parallel_for(n_tasks, task);
    for (int64_t i = 0; i < n_tasks; ++i) task(i);
  }

  void few_rows() const {
    int64_t n_x = params_.m * params_.k;
    bool converted = params_.x_type != FloatType::kFloat32;
    for (int64_t i = 0; converted && i < n_batch_; ++i) {
      kernels_.convert(params_.x_type, inputs_[0][i], n_x, x_f32_ + i * n_x);
    }
    int64_t cols = few_rows_cols(params_.transpose), n_tasks = ceil_div(params_.n, cols);
    run(n_batch_ * n_tasks, [&](int64_t task) {
      int64_t i = task / n_tasks, col = task % n_tasks * cols;
      auto params = batch(i);
      const float* x = converted ? x_f32_ + i * n_x : static_cast<const float*>(params.x);
      kernels_.few_rows(params, x, {col, std::min(col + cols, params.n)});
    });
  }

  void tiles() const {
    int64_t cols = tile_cols(params_.transpose), n_cols = ceil_div(params_.n, cols);
    int64_t n_rows = ceil_div(params_.m, kTileRows);
    run(n_batch_ * n_rows * n_cols, [&](int64_t task) {
      int64_t row = task % n_rows * kTileRows, col = task / n_rows % n_cols * cols;
      auto params = batch(task / (n_rows * n_cols));
      kernels_.tile(params, {row, std::min(row + kTileRows, params.m)},
                    {col, std::min(col + cols, params.n)});
    });
  }

  const QuantizedMatmulKernels& kernels_;
  QuantizedMatmulParams params_;
  std::vector<Matrices> inputs_;
  int64_t n_batch_;
  char* out_;
  float* x_f32_;
};

}  // namespace

void QuantizedMatmul::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
  if (eval_emulated(*this, stream(), inputs, {out})) return;
  out.set_data(mx::allocator::malloc(out.nbytes()));
  if (out.size() == 0) return;
  auto& encoder = mx::cpu::get_command_encoder(stream());
  count("quantized_matmul", "cpu", "fused");
  const auto& x = inputs[0];
  if (x.shape(-1) == 0) {
    encoder.dispatch([data = out.data<char>(), n = out.nbytes()] { std::fill(data, data + n, 0); });
    return;
  }
  QuantizedMatmulParams params{};
  params.x_type = *float_type(x.dtype());
  params.scales_type = *float_type(inputs[2].dtype());
  params.biases_type = *float_type(inputs[3].dtype());
  params.m = out.shape(-2);
  params.n = out.shape(-1);
  params.k = x.shape(-1);
  params.bits = bits_;
  params.group_size = group_size_;
  params.transpose = transpose_;

  mx::Shape batch(out.shape().begin(), out.shape().end() - 2);
  int64_t n_batch = out.size() / (params.m * params.n);
  std::vector<Matrices> operands;
  operands.reserve(inputs.size());
  for (const auto& input : inputs) operands.emplace_back(input, batch, stream());
  bool one_matrix = operands[1].shared() && operands[2].shared() && operands[3].shared();
  if (n_batch > 1 && one_matrix && operands[0].dense()) {
    params.m *= n_batch;
    n_batch = 1;
  }
  const auto& kernels = quantized_matmul_kernels(current_isa());
  float* x_f32 = nullptr;
  if (params.x_type != FloatType::kFloat32 && params.m <= kernels.few_rows_max) {
    // Three dimensions, whose product may pass 2^31.
    mx::Shape shape{static_cast<int>(n_batch), static_cast<int>(params.m),
                    static_cast<int>(params.k)};
    x_f32 = temporary(shape, mx::float32, stream()).data<float>();
  }
  encoder.dispatch(Launch(kernels, params, std::move(operands), n_batch, out.data<char>(), x_f32));
}

}  // namespace mto
