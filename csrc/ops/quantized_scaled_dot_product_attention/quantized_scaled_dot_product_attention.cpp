#include "ops/quantized_scaled_dot_product_attention/quantized_scaled_dot_product_attention.h"

#include "common/route.h"
#include "ops/dequantize/dequantize.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_checks.h"

namespace mto {
namespace {

constexpr const char* kOp = "quantized_scaled_dot_product_attention";

void check_arrays(const std::string& name, const QuantizedOperand& operand, const Format& format) {
  size_t expected = format.affine() ? 3 : 2;
  if (operand.arrays.size() != expected) {
    fail(kOp, name,
         format.affine() ? "be (w, scales, biases) in mode \"affine\""
                         : "be (w, scales) in mode \"" + format.mode + "\"",
         std::to_string(operand.arrays.size()) + " arrays");
  }
  for (const auto& a : operand.arrays) {
    if (a.ndim() != 4) {
      fail(kOp, name, "be arrays of 4 dimensions", "shape " + to_string(a.shape()));
    }
  }
}

// The values as float32: what a kernel decodes in registers is not rounded to 16 bits either.
mx::array dense(const std::string& name, const QuantizedOperand& operand, mx::Stream s) {
  auto format = check_format(kOp, operand.mode, operand.group_size, operand.bits);
  check_arrays(name, operand, format);
  const auto &w = operand.arrays[0], &scales = operand.arrays[1];
  if (!format.affine()) {
    check_other_mode(kOp, w, scales);
    return mx::dequantize(w, scales, std::nullopt, operand.group_size, operand.bits, operand.mode,
                          std::nullopt, mx::float32, s);
  }
  const auto& biases = operand.arrays[2];
  check_affine_operands(kOp, w, scales, biases, format);
  return dequantize(w, scales, biases, operand.group_size, operand.bits, operand.mode, std::nullopt,
                    mx::float32, std::nullopt, false, s);
}

}  // namespace

std::pair<mx::array, mx::array> quantized_scaled_dot_product_attention(
    const mx::array& q, const QuantizedOperand& k, const QuantizedOperand& v, double scale,
    const AttentionOptions& options, mx::StreamOrDevice s) {
  auto stream = mx::to_stream(s);
  if (!mx::issubdtype(q.dtype(), mx::floating)) {
    fail(kOp, "q", "have a floating dtype", to_string(q.dtype()));
  }
  auto keys = dense("k", k, stream), values = dense("v", v, stream);
  check_attention_operands(kOp, q, keys, values);
  canonical_call(kOp, q, keys, values, scale, options, stream);
  takes_call({kOp, stream, "no kernel for packed keys and values", false, options.route,
              options.force_fused});
  auto [out, lse] = scaled_dot_product_attention(q, keys, values, scale, options, stream);
  return {mx::astype(out, q.dtype(), stream), lse};
}

}  // namespace mto
