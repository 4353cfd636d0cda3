#include "ops/dequantize/dequantize_format.h"

#include <algorithm>

#include "common/route.h"
#include "common/transforms.h"

namespace mto {
namespace {

constexpr const char* kOp = "dequantize";
constexpr float kGlobalUnit = 2688.0f;  // 448 * 6: the global scale that changes nothing

mx::array decoded(const FormatCall& call, const std::vector<mx::array>& packed, mx::Stream s) {
  return DequantizeFormat(s, call, mx::float32).apply(packed);
}

bool contains(const std::vector<int>& argnums, int arg) {
  return std::find(argnums.begin(), argnums.end(), arg) != argnums.end();
}

}  // namespace

mx::array DequantizeFormat::apply(const std::vector<mx::array>& packed, bool force_fused) {
  auto primitive = std::make_shared<DequantizeFormat>(stream(), call_, dtype_);
  auto inputs = kernel_inputs(packed, stream());
  auto shape = primitive->output_shapes(inputs)[0];
  mx::array out(std::move(shape), dtype_, primitive, std::move(inputs));
  if (!can_be_verified(call_) || may_run(kOp, out, force_fused)) return out;
  if (!known_to_mlx(call_)) {
    fail(kOp, "mode", "have kernels that are right on this device", last_reason());
  }
  auto global =
      packed.size() > 2 ? std::optional(mx::reshape(packed[2], {}, stream())) : std::nullopt;
  return mx::dequantize(packed[0], packed[1], std::nullopt, call_.group_cols, call_.bits,
                        call_.row->name, global, dtype_, stream());
}

std::vector<mx::Shape> DequantizeFormat::output_shapes(const std::vector<mx::array>& inputs) {
  auto shape = check_same_packed(kOp, call_, inputs);
  auto [rows, cols] = decoded_shape(call_, inputs[0]);
  shape.push_back(rows);
  shape.push_back(cols);
  return {shape};
}

bool DequantizeFormat::is_equivalent(const mx::Primitive& other) const {
  auto& o = static_cast<const DequantizeFormat&>(other);
  return call_ == o.call_ && dtype_ == o.dtype_;
}

std::vector<std::vector<mx::array>> linear_terms(const FormatCall& call,
                                                 const std::vector<mx::array>& packed, int first,
                                                 const std::vector<mx::array>& tangents,
                                                 const std::vector<int>& argnums, mx::Stream s) {
  std::vector<std::vector<mx::array>> terms;
  auto tangent = [&](int i) {
    return tangent_or_zeros(packed[i], first + i, tangents, argnums, s);
  };
  bool of_scales = contains(argnums, first + 1), of_third = contains(argnums, first + 2);
  if (call.affine()) {
    if (of_scales || of_third) terms.push_back({packed[0], tangent(1), tangent(2)});
    return terms;
  }
  if (of_scales) {
    terms.push_back(packed);
    terms.back()[1] = tangent(1);
  }
  if (of_third) {
    terms.push_back(packed);
    terms.back()[2] = tangent(2);
  }
  return terms;
}

mx::array packed_gradient(const FormatCall& call, const std::vector<mx::array>& packed, int i,
                          const mx::array& grad, mx::Stream s) {
  auto others = packed;
  if (i == 2 && call.affine())
    return sum_to(group_sums(call, grad, s), packed[2].shape(), packed[2].dtype(), s);
  if (i == 2) {
    others[2] = mx::multiply(ones_of(packed[2], mx::float32, s), mx::array(kGlobalUnit), s);
    auto terms =
        mx::divide(mx::multiply(grad, decoded(call, others, s), s), mx::array(kGlobalUnit), s);
    auto sums = mx::sum(terms, std::vector<int>{-2, -1}, true, s);
    return sum_to(sums, packed[2].shape(), packed[2].dtype(), s);
  }
  others[1] = ones_of(packed[1], mx::float32, s);
  if (call.affine()) others[2] = zeros_of(packed[2], mx::float32, s);
  auto sums = group_sums(call, mx::multiply(grad, decoded(call, others, s), s), s);
  return sum_to(sums, packed[1].shape(), packed[1].dtype(), s);
}

std::vector<mx::array> DequantizeFormat::jvp(const std::vector<mx::array>& primals,
                                             const std::vector<mx::array>& tangents,
                                             const std::vector<int>& argnums) {
  refuse_codes(kOp, primals, 0, argnums);
  auto terms = linear_terms(call_, primals, 0, tangents, argnums, stream());
  auto out = apply(terms[0]);
  for (size_t i = 1; i < terms.size(); ++i) out = mx::add(out, apply(terms[i]), stream());
  return {out};
}

std::vector<mx::array> DequantizeFormat::vjp(const std::vector<mx::array>& primals,
                                             const std::vector<mx::array>& cotangents,
                                             const std::vector<int>& argnums,
                                             const std::vector<mx::array>& outputs) {
  refuse_codes(kOp, primals, 0, argnums);
  auto cotangent = as_cotangent(kOp, cotangents[0], outputs[0], stream());
  auto grad = mx::astype(cotangent, mx::float32, stream());
  std::vector<mx::array> grads;
  for (int arg : argnums) grads.push_back(packed_gradient(call_, primals, arg, grad, stream()));
  return grads;
}

std::pair<std::vector<mx::array>, std::vector<int>> DequantizeFormat::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  int n_dims = 0;
  for (size_t i = 0; i < inputs.size(); ++i) {
    n_dims = std::max(n_dims, static_cast<int>(inputs[i].ndim()) - (axes[i] >= 0 ? 1 : 0));
  }
  return {{apply(with_batch_axis(inputs, axes, n_dims, stream()))}, {0}};
}

}  // namespace mto
