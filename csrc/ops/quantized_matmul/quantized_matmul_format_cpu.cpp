#include <mlx/backend/cpu/encoder.h>

#include <algorithm>

#include "common/counters.h"
#include "common/integers.h"
#include "common/route.h"
#include "cpu/packed_operands.h"
#include "cpu/thread_pool.h"
#include "formats/format_kernels.h"
#include "ops/quantized_matmul/quantized_matmul_format.h"
#include "ops/quantized_matmul/quantized_matmul_kernels.h"
#include "ops/quantized_matmul/quantized_matmul_tiles.h"

namespace mto {
namespace {

constexpr int64_t kDecoded = 32;  // values are decoded so many at a time

// As the launch of quantized_matmul_cpu.cpp.
class FormatLaunch {
 public:
  FormatLaunch(const QuantizedMatmulKernels& kernels, FormatProduct product, bool affine,
               std::vector<Matrices> inputs, int64_t n_batch, char* out, float* x_f32)
      : kernels_(kernels),
        product_(product),
        affine_(affine),
        inputs_(std::move(inputs)),
        n_batch_(n_batch),
        out_(out),
        x_f32_(x_f32) {}

  void operator()() {
    for (auto& input : inputs_) input.load();
    product_.product.m <= kernels_.few_rows_max ? few_rows() : tiles();
  }

 private:
  FormatProduct batch(int64_t i) const {
    auto p = product_;
    p.product.x = inputs_[0][i];
    p.product.y = out_ + i * p.product.m * p.product.n * size_of(p.product.x_type);
    point_at_operands(p.matrix, inputs_, 1, affine_, i);
    return p;
  }

  void run(int64_t n_tasks, const std::function<void(int64_t)>& task) const {
    const auto& p = product_.product;
    if (p.m * p.n * p.k * n_batch_ >= kSerialWork) return parallel_for(n_tasks, task);
    for (int64_t i = 0; i < n_tasks; ++i) task(i);
  }

  void few_rows() const {
    const auto& p = product_.product;
    int64_t stride = x_f32_ ? ceil_div(p.k, kDecoded) * kDecoded : p.k;
    for (int64_t i = 0; x_f32_ && i < n_batch_; ++i) {
      for (int64_t r = 0; r < p.m; ++r) {
        float* row = x_f32_ + (i * p.m + r) * stride;
        auto from = static_cast<const char*>(inputs_[0][i]) + r * p.k * size_of(p.x_type);
        kernels_.convert(p.x_type, from, p.k, row);
        std::fill(row + p.k, row + stride, 0.0f);
      }
    }
    int64_t cols = few_rows_cols(p.transpose), n_tasks = ceil_div(p.n, cols);
    run(n_batch_ * n_tasks, [&](int64_t task) {
      int64_t i = task / n_tasks, col = task % n_tasks * cols;
      auto one = batch(i);
      const float* x =
          x_f32_ ? x_f32_ + i * p.m * stride : static_cast<const float*>(one.product.x);
      kernels_.few_rows_format(one, x, stride, {col, std::min(col + cols, p.n)});
    });
  }

  void tiles() const {
    const auto& p = product_.product;
    int64_t cols = tile_cols(p.transpose), n_cols = ceil_div(p.n, cols);
    int64_t n_rows = ceil_div(p.m, kTileRows);
    run(n_batch_ * n_rows * n_cols, [&](int64_t task) {
      int64_t row = task % n_rows * kTileRows, col = task / n_rows % n_cols * cols;
      kernels_.tile_format(batch(task / (n_rows * n_cols)), {row, std::min(row + kTileRows, p.m)},
                           {col, std::min(col + cols, p.n)});
    });
  }

  const QuantizedMatmulKernels& kernels_;
  FormatProduct product_;
  bool affine_;
  std::vector<Matrices> inputs_;
  int64_t n_batch_;
  char* out_;
  float* x_f32_;
};

}  // namespace

void QuantizedMatmulFormat::eval_cpu(const std::vector<mx::array>& inputs, mx::array& out) {
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
  FormatProduct product{};
  auto& p = product.product;
  p.x_type = *float_type(x.dtype());
  p.m = out.shape(-2);
  p.n = out.shape(-1);
  p.k = x.shape(-1);
  p.transpose = transpose_;
  product.matrix = packed_matrix(call_, {inputs.begin() + 1, inputs.end()});
  auto isa = current_isa();
  product.decode = format_kernels(isa).decoder(call_.row->name, call_.bits, product.matrix.layout);

  mx::Shape batch(out.shape().begin(), out.shape().end() - 2);
  int64_t n_batch = out.size() / (p.m * p.n);
  std::vector<Matrices> operands;
  operands.reserve(inputs.size());
  for (const auto& input : inputs) operands.emplace_back(input, batch, stream());
  bool one_matrix = std::all_of(operands.begin() + 1, operands.end(),
                                [](const Matrices& operand) { return operand.shared(); });
  if (n_batch > 1 && one_matrix && operands[0].dense()) {
    p.m *= n_batch;
    n_batch = 1;
  }
  const auto& kernels = quantized_matmul_kernels(isa);
  float* x_f32 = nullptr;
  bool converted = p.x_type != FloatType::kFloat32 || p.k % kDecoded != 0;
  if (converted && p.m <= kernels.few_rows_max) {
    // Three dimensions, whose product may pass 2^31.
    mx::Shape shape{static_cast<int>(n_batch), static_cast<int>(p.m),
                    static_cast<int>(ceil_div(p.k, kDecoded) * kDecoded)};
    x_f32 = temporary(shape, mx::float32, stream()).data<float>();
  }
  encoder.dispatch(FormatLaunch(kernels, product, call_.affine(), std::move(operands), n_batch,
                                out.data<char>(), x_f32));
}

}  // namespace mto
