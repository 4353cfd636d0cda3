#include "ops/quantized_matmul/quantized_matmul.h"

#include <algorithm>
#include <array>

#include "common/route.h"
#include "common/transforms.h"
#include "ops/dequantize/dequantize.h"
#include "ops/quantized_matmul/quantized_matmul_format.h"

namespace mto {
namespace {

constexpr const char* kOp = "quantized_matmul";

mx::Shape batch_of(const mx::array& a) { return mx::Shape(a.shape().begin(), a.shape().end() - 2); }

void check_inner(const mx::array& x, const mx::array& w, int inner, bool transpose) {
  if (x.ndim() == 0) fail(kOp, "x", "have at least 1 dimension", "a scalar");
  if (x.dtype() == mx::complex64) fail(kOp, "x", "be real", to_string(x.dtype()));
  if (x.shape(-1) != inner) {
    fail(kOp, "x",
         "have the last dimension " + std::to_string(inner) + " of w " + to_string(w.shape()) +
             (transpose ? " (transposed)" : " (not transposed)"),
         "shape " + to_string(x.shape()));
  }
}

mx::Shape check_batch(const mx::array& x, const mx::array& w) {
  try {
    return mx::broadcast_shapes(batch_of(x), batch_of(w));
  } catch (const std::exception&) {
    fail(kOp, "x", "have leading dimensions that broadcast with those of w " + to_string(w.shape()),
         "shape " + to_string(x.shape()));
  }
}

// MLX's own op, guarded where it would end the process (nothing to multiply) or take only the first
// matrix of a batch (an x of fewer dimensions than w).
mx::array mlx_quantized_matmul(const mx::array& x, const mx::array& w, const mx::array& scales,
                               const std::optional<mx::array>& biases, bool transpose,
                               std::optional<int> group_size, std::optional<int> bits,
                               const std::string& mode, mx::Stream s) {
  if (x.ndim() > 1 && x.ndim() < w.ndim()) {
    mx::Shape shape(w.ndim() - x.ndim(), 1);
    shape.insert(shape.end(), x.shape().begin(), x.shape().end());
    return mlx_quantized_matmul(mx::reshape(x, shape, s), w, scales, biases, transpose, group_size,
                                bits, mode, s);
  }
  if (x.size() != 0 && w.size() != 0) {
    return mx::quantized_matmul(x, w, scales, biases, transpose, group_size, bits, mode, s);
  }
  // A product that is never evaluated gives the shape and dtype, and the errors.
  auto shape = x.shape();
  std::replace(shape.begin(), shape.end(), 0, 1);
  shape.back() = x.shape(-1);
  auto out = mx::quantized_matmul(mx::zeros(shape, x.dtype(), s), w, scales, biases, transpose,
                                  group_size, bits, mode, s);
  shape = out.shape();
  for (size_t axis = 2; axis <= x.ndim(); ++axis) {
    if (x.shape(-static_cast<int>(axis)) == 0) shape[shape.size() - axis] = 0;
  }
  return mx::zeros(shape, out.dtype(), s);
}

// MLX's op wants the same leading dimensions in all three.
std::array<mx::array, 3> one_batch(const mx::array& w, const mx::array& scales,
                                   const mx::array& biases, mx::Stream s) {
  auto batch =
      mx::broadcast_shapes(batch_of(w), mx::broadcast_shapes(batch_of(scales), batch_of(biases)));
  auto widened = [&](const mx::array& a) {
    auto shape = batch;
    shape.insert(shape.end(), a.shape().end() - 2, a.shape().end());
    return mx::broadcast_to(a, shape, s);
  };
  return {widened(w), widened(scales), widened(biases)};
}

}  // namespace

mx::array quantized_matmul(const mx::array& x, const mx::array& w,
                           const std::optional<mx::array>& scales,
                           const std::optional<mx::array>& biases, bool transpose,
                           const std::optional<GroupSize>& group_size, std::optional<int> bits,
                           const std::string& mode, const std::optional<mx::array>& global_scale,
                           const std::optional<std::string>& precision,
                           const std::optional<std::string>& route, bool force_fused,
                           mx::StreamOrDevice s) {
  auto stream = mx::to_stream(s);
  auto call = check_format_call(kOp, mode, group_size, bits);
  bool tf32 = check_precision(kOp, precision);
  auto place = place_of(stream);
  auto packed = check_packed(kOp, call, w, scales, biases, global_scale, stream);
  auto [rows, cols] = decoded_shape(call, w);
  check_inner(x, w, transpose ? cols : rows, transpose);
  auto matrix = x.ndim() == 1 ? mx::expand_dims(x, 0, stream) : x;
  check_batch(matrix, w);
  NamedDtypes dtypes{{"x", x.dtype()}};
  for (const auto& one : packed_dtypes(call, packed)) dtypes.push_back(one);
  auto squeezed = [&](const mx::array& out) {
    return x.ndim() == 1 ? mx::squeeze(out, -2, stream) : out;
  };
  if (takes_call({kOp, place, coverage_of(place, call, dtypes), route, force_fused})) {
    if (!has_affine_kernels(call)) {
      packed.insert(packed.begin(), matrix);
      QuantizedMatmulFormat op(stream, call, transpose, tf32);
      return squeezed(op.apply(packed, transpose, force_fused));
    }
    QuantizedMatmul op(stream, call.group_cols, call.bits, transpose, tf32);
    return squeezed(op.apply(matrix, w, packed[1], packed[2], transpose, force_fused));
  }
  check_known_to_mlx(kOp, call);
  if (global_scale) fail(kOp, "global_scale", "be None for MLX's op", "an array");
  auto out = mlx_quantized_matmul(matrix, w, *scales, biases, transpose, call.group_cols, call.bits,
                                  mode, stream);
  // The result's dtype must not depend on the system that the call runs on.
  if (float_type(x.dtype())) out = mx::astype(out, x.dtype(), stream);
  return squeezed(out);
}

std::vector<mx::Shape> QuantizedMatmul::output_shapes(const std::vector<mx::array>& inputs) {
  const auto& x = inputs[0];
  const auto& w = inputs[1];
  check_same_groups(kOp, w, inputs[2], inputs[3], group_size_, bits_);
  int n_values = inputs[2].shape(-1) * group_size_;
  check_inner(x, w, transpose_ ? n_values : w.shape(-2), transpose_);
  mx::Shape shape = batch_of(x);
  for (int i = 1; i < 4; ++i) shape = mx::broadcast_shapes(shape, batch_of(inputs[i]));
  shape.push_back(x.shape(-2));
  shape.push_back(transpose_ ? w.shape(-2) : n_values);
  return {shape};
}

bool QuantizedMatmul::is_equivalent(const mx::Primitive& other) const {
  auto& o = static_cast<const QuantizedMatmul&>(other);
  return group_size_ == o.group_size_ && bits_ == o.bits_ && transpose_ == o.transpose_ &&
         tf32_ == o.tf32_;
}

mx::array QuantizedMatmul::apply(const mx::array& x, const mx::array& w, const mx::array& scales,
                                 const mx::array& biases, bool transpose, bool force_fused) {
  auto primitive =
      std::make_shared<QuantizedMatmul>(stream(), group_size_, bits_, transpose, tf32_);
  auto inputs = kernel_inputs({x, w, scales, biases}, stream());
  auto shape = primitive->output_shapes(inputs)[0];
  mx::array out(std::move(shape), x.dtype(), primitive, std::move(inputs));
  if (may_run(kOp, out, force_fused)) return out;
  auto [w2, scales2, biases2] = one_batch(w, scales, biases, stream());
  auto by_mlx = mlx_quantized_matmul(x, w2, scales2, biases2, transpose, group_size_, bits_,
                                     "affine", stream());
  return mx::astype(by_mlx, x.dtype(), stream());
}

// y is linear in each of x, scales and biases.
std::vector<mx::array> QuantizedMatmul::jvp(const std::vector<mx::array>& primals,
                                            const std::vector<mx::array>& tangents,
                                            const std::vector<int>& argnums) {
  refuse_packed(kOp, 1, argnums);
  const auto& [x, w, scales, biases] = std::tie(primals[0], primals[1], primals[2], primals[3]);
  std::vector<mx::array> terms;
  if (std::find(argnums.begin(), argnums.end(), 0) != argnums.end()) {
    auto tangent = tangent_or_zeros(x, 0, tangents, argnums, stream());
    terms.push_back(apply(tangent, w, scales, biases, transpose_));
  }
  if (std::any_of(argnums.begin(), argnums.end(), [](int arg) { return arg >= 2; })) {
    auto s = tangent_or_zeros(scales, 2, tangents, argnums, stream());
    auto b = tangent_or_zeros(biases, 3, tangents, argnums, stream());
    terms.push_back(apply(x, w, s, b, transpose_));
  }
  return {terms.size() == 1 ? terms[0] : mx::add(terms[0], terms[1], stream())};
}

// With G the gradient of the decoded matrix: d scale = sum over its group of G * code, d bias = sum
// of G.
std::pair<mx::array, mx::array> QuantizedMatmul::scales_grad(const std::vector<mx::array>& primals,
                                                             const mx::array& cotangent) {
  auto s = stream();
  auto x = mx::astype(primals[0], mx::float32, s), dy = mx::astype(cotangent, mx::float32, s);
  const auto& w = primals[1];
  bool one_matrix = std::all_of(primals.begin() + 1, primals.end(),
                                [](const mx::array& a) { return a.ndim() == 2; });
  if (one_matrix) {
    // The rows of all batches are summed over by one product.
    x = mx::flatten(x, 0, -2, s);
    dy = mx::flatten(dy, 0, -2, s);
  }
  auto grad = transpose_ ? mx::matmul(mx::swapaxes(dy, -1, -2, s), x, s)
                         : mx::matmul(mx::swapaxes(x, -1, -2, s), dy, s);
  grad = split_groups(grad, group_size_, s);
  auto codes = split_groups(affine_codes(w, primals[2], group_size_, bits_, s), group_size_, s);
  return {mx::sum(mx::multiply(grad, codes, s), -1, false, s), mx::sum(grad, -1, false, s)};
}

std::vector<mx::array> QuantizedMatmul::vjp(const std::vector<mx::array>& primals,
                                            const std::vector<mx::array>& cotangents,
                                            const std::vector<int>& argnums,
                                            const std::vector<mx::array>& outputs) {
  refuse_packed(kOp, 1, argnums);
  auto cotangent = as_cotangent(kOp, cotangents[0], outputs[0], stream());
  std::optional<std::pair<mx::array, mx::array>> of_scales;
  std::vector<mx::array> grads;
  for (int arg : argnums) {
    const auto& primal = primals[arg];
    if (arg == 0) {
      // Where x was broadcast, its gradients are summed before they are rounded to its dtype.
      bool summed = batch_of(cotangent) != batch_of(primal);
      auto dy = summed ? mx::astype(cotangent, mx::float32, stream()) : cotangent;
      auto grad = apply(dy, primals[1], primals[2], primals[3], !transpose_);
      grads.push_back(sum_to(grad, primal.shape(), primal.dtype(), stream()));
      continue;
    }
    if (!of_scales) of_scales = scales_grad(primals, cotangent);
    auto& grad = arg == 2 ? of_scales->first : of_scales->second;
    grads.push_back(sum_to(grad, primal.shape(), primal.dtype(), stream()));
  }
  return grads;
}

std::pair<std::vector<mx::array>, std::vector<int>> QuantizedMatmul::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  int n_dims = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    n_dims = std::max(n_dims, static_cast<int>(inputs[i].ndim()) - (axes[i] >= 0 ? 1 : 0));
  }
  // Unmapped matrices stay as they are: they broadcast, and one matrix for all rows is the fast
  // case.
  auto moved = with_batch_axis(inputs, axes, n_dims, stream());
  for (size_t i = 1; i < inputs.size(); ++i) {
    if (axes[i] < 0) moved[i] = inputs[i];
  }
  return {{apply(moved[0], moved[1], moved[2], moved[3], transpose_)}, {0}};
}

}  // namespace mto
