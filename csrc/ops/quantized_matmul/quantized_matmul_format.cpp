#include "ops/quantized_matmul/quantized_matmul_format.h"

#include <algorithm>

#include "common/route.h"
#include "common/transforms.h"
#include "ops/dequantize/dequantize_format.h"
#include "ops/quantized_matmul/quantized_matmul.h"

namespace mto {
namespace {

constexpr const char* kOp = "quantized_matmul";

mx::Shape batch_of(const mx::array& a) { return mx::Shape(a.shape().begin(), a.shape().end() - 2); }

std::vector<mx::array> packed_of(const std::vector<mx::array>& inputs) {
  return {inputs.begin() + 1, inputs.end()};
}

std::vector<mx::array> with_x(const mx::array& x, const std::vector<mx::array>& packed) {
  std::vector<mx::array> inputs{x};
  inputs.insert(inputs.end(), packed.begin(), packed.end());
  return inputs;
}

}  // namespace

mx::array QuantizedMatmulFormat::apply(const std::vector<mx::array>& inputs, bool transpose,
                                       bool force_fused) {
  auto primitive = std::make_shared<QuantizedMatmulFormat>(stream(), call_, transpose, tf32_);
  auto operands = kernel_inputs(inputs, stream());
  auto shape = primitive->output_shapes(operands)[0];
  auto dtype = inputs[0].dtype();
  mx::array out(std::move(shape), dtype, primitive, std::move(operands));
  if (!can_be_verified(call_) || may_run(kOp, out, force_fused)) return out;
  // By MLX's product with the decoded matrix, which may itself be MLX's.
  auto w = DequantizeFormat(stream(), call_, dtype).apply(packed_of(inputs));
  return mx::matmul(inputs[0], transpose ? mx::swapaxes(w, -1, -2, stream()) : w, stream());
}

std::vector<mx::Shape> QuantizedMatmulFormat::output_shapes(const std::vector<mx::array>& inputs) {
  const auto& x = inputs[0];
  auto packed = packed_of(inputs);
  auto shape = mx::broadcast_shapes(batch_of(x), check_same_packed(kOp, call_, packed));
  auto [rows, cols] = decoded_shape(call_, packed[0]);
  int inner = transpose_ ? cols : rows;
  if (x.shape(-1) != inner) {
    fail(kOp, "x",
         "have the last dimension " + std::to_string(inner) + " of w " +
             to_string(packed[0].shape()) + (transpose_ ? " (transposed)" : " (not transposed)"),
         "shape " + to_string(x.shape()));
  }
  shape.push_back(x.shape(-2));
  shape.push_back(transpose_ ? rows : cols);
  return {shape};
}

bool QuantizedMatmulFormat::is_equivalent(const mx::Primitive& other) const {
  auto& o = static_cast<const QuantizedMatmulFormat&>(other);
  return call_ == o.call_ && transpose_ == o.transpose_ && tf32_ == o.tf32_;
}

// y is linear in x, and in what linear_terms() says.
std::vector<mx::array> QuantizedMatmulFormat::jvp(const std::vector<mx::array>& primals,
                                                  const std::vector<mx::array>& tangents,
                                                  const std::vector<int>& argnums) {
  refuse_codes(kOp, primals, 1, argnums);
  auto packed = packed_of(primals);
  std::vector<mx::array> terms;
  if (std::find(argnums.begin(), argnums.end(), 0) != argnums.end()) {
    auto tangent = tangent_or_zeros(primals[0], 0, tangents, argnums, stream());
    terms.push_back(apply(with_x(tangent, packed), transpose_));
  }
  for (const auto& term : linear_terms(call_, packed, 1, tangents, argnums, stream())) {
    terms.push_back(apply(with_x(primals[0], term), transpose_));
  }
  auto out = terms[0];
  for (size_t i = 1; i < terms.size(); ++i) out = mx::add(out, terms[i], stream());
  return {out};
}

// Of the decoded matrix, in float32.
mx::array QuantizedMatmulFormat::matrix_gradient(const std::vector<mx::array>& primals,
                                                 const mx::array& cotangent) {
  auto s = stream();
  auto x = mx::astype(primals[0], mx::float32, s), dy = mx::astype(cotangent, mx::float32, s);
  bool one_matrix = std::all_of(primals.begin() + 1, primals.end(),
                                [](const mx::array& a) { return a.ndim() == 2; });
  if (one_matrix) {
    // The rows of all batches are summed over by one product.
    x = mx::flatten(x, 0, -2, s);
    dy = mx::flatten(dy, 0, -2, s);
  }
  return transpose_ ? mx::matmul(mx::swapaxes(dy, -1, -2, s), x, s)
                    : mx::matmul(mx::swapaxes(x, -1, -2, s), dy, s);
}

std::vector<mx::array> QuantizedMatmulFormat::vjp(const std::vector<mx::array>& primals,
                                                  const std::vector<mx::array>& cotangents,
                                                  const std::vector<int>& argnums,
                                                  const std::vector<mx::array>& outputs) {
  refuse_codes(kOp, primals, 1, argnums);
  auto cotangent = as_cotangent(kOp, cotangents[0], outputs[0], stream());
  auto packed = packed_of(primals);
  std::optional<mx::array> of_matrix;
  std::vector<mx::array> grads;
  for (int arg : argnums) {
    if (arg == 0) {
      // Where x was broadcast, its gradients are summed before they are rounded to its dtype.
      const auto& x = primals[0];
      bool summed = batch_of(cotangent) != batch_of(x);
      auto dy = summed ? mx::astype(cotangent, mx::float32, stream()) : cotangent;
      auto grad = apply(with_x(dy, packed), !transpose_);
      grads.push_back(sum_to(grad, x.shape(), x.dtype(), stream()));
      continue;
    }
    if (!of_matrix) of_matrix = matrix_gradient(primals, cotangent);
    grads.push_back(packed_gradient(call_, packed, arg - 1, *of_matrix, stream()));
  }
  return grads;
}

std::pair<std::vector<mx::array>, std::vector<int>> QuantizedMatmulFormat::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  int n_dims = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    n_dims = std::max(n_dims, static_cast<int>(inputs[i].ndim()) - (axes[i] >= 0 ? 1 : 0));
  }
  // As in QuantizedMatmul::vmap.
  auto moved = with_batch_axis(inputs, axes, n_dims, stream());
  for (size_t i = 1; i < inputs.size(); ++i) {
    if (axes[i] < 0) moved[i] = inputs[i];
  }
  return {{apply(moved, transpose_)}, {0}};
}

}  // namespace mto
