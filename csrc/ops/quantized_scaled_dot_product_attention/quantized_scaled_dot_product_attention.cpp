#include "ops/quantized_scaled_dot_product_attention/quantized_scaled_dot_product_attention.h"

#include "common/route.h"
#include "common/transforms.h"
#include "ops/dequantize/dequantize.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_checks.h"

namespace mto {
namespace {

using Arrays = std::vector<mx::array>;

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
  if (format.affine()) {
    check_affine_operands(kOp, operand.arrays[0], operand.arrays[1], operand.arrays[2], format);
  } else {
    check_other_mode(kOp, operand.arrays[0], operand.arrays[1]);
  }
}

// The values as float32: what a kernel decodes in registers is not rounded to 16 bits either. By
// our kernels, which round once.
mx::array decode(const Arrays& arrays, const Format& format, mx::Stream s) {
  if (!format.affine()) {
    return mx::dequantize(arrays[0], arrays[1], std::nullopt, format.group_size, format.bits,
                          format.mode, std::nullopt, mx::float32, s);
  }
  return dequantize(arrays[0], arrays[1], arrays[2], format.group_size, format.bits, format.mode,
                    std::nullopt, mx::float32, "ours", false, s);
}

// An array of the shape that they decode to, for checks.
mx::array unread(const Arrays& arrays, const Format& format, mx::Stream s) {
  auto shape = arrays[0].shape();
  shape.back() = static_cast<int>(int64_t{32} * shape.back() / format.bits);
  return mx::zeros(shape, mx::float32, s);
}

// Those that MLX has in modes other than affine.
int default_group(const Format& format) { return format.mode == "nvfp4" ? 16 : 32; }
int default_bits(const Format& format) { return format.mode == "mxfp8" ? 8 : 4; }

Format checked_format(const std::string& name, const QuantizedOperand& operand) {
  auto format = check_format(kOp, operand.mode, operand.group_size, operand.bits);
  if (!format.affine()) {
    format.group_size = operand.group_size.value_or(default_group(format));
    format.bits = operand.bits.value_or(default_bits(format));
  }
  check_arrays(name, operand, format);
  return format;
}

// Why no kernel reads such keys, or values.
std::string unsupported_operand(const Arrays& arrays, const Format& format) {
  if (!format.affine()) {
    // What is no array of the mode is MLX's to refuse.
    int64_t n_bits = int64_t{32} * arrays[0].shape(-1);
    bool whole = n_bits == int64_t{arrays[1].shape(-1)} * format.group_size * format.bits;
    bool stored = arrays[0].dtype() == mx::uint32 && arrays[1].dtype() == mx::uint8;
    bool usual = format.bits == default_bits(format) && format.group_size == default_group(format);
    return whole && stored && usual ? "" : "arrays or geometry unlike those of mode " + format.mode;
  }
  for (size_t i = 1; i < arrays.size(); ++i) {
    auto dtype = arrays[i].dtype();
    if (!float_type(dtype)) return "scales or biases of dtype " + to_string(dtype);
  }
  return "";
}

PackedFormat packed_format(const Format& format) {
  return {format.group_size, format.bits, format.mode};
}

}  // namespace

std::pair<mx::array, mx::array> quantized_scaled_dot_product_attention(
    const mx::array& q, const QuantizedOperand& k, const QuantizedOperand& v, double scale,
    const AttentionOptions& options, mx::StreamOrDevice s) {
  auto stream = mx::to_stream(s);
  if (!mx::issubdtype(q.dtype(), mx::floating)) {
    fail(kOp, "q", "have a floating dtype", to_string(q.dtype()));
  }
  auto k_format = checked_format("k", k), v_format = checked_format("v", v);
  auto keys = unread(k.arrays, k_format, stream), values = unread(v.arrays, v_format, stream);
  check_attention_operands(kOp, q, keys, values);
  auto call = canonical_call(kOp, q, keys, values, scale, options, stream);
  auto place = place_of(stream);
  auto reason = unsupported_attention(place.backend, q.dtype(), q.shape(-1), values.shape(-1));
  if (reason.empty()) reason = unsupported_operand(k.arrays, k_format);
  if (reason.empty()) reason = unsupported_operand(v.arrays, v_format);
  Coverage coverage{reason, false};
  auto without_kernel = [&]() -> std::pair<mx::array, mx::array> {
    auto [out, lse] =
        scaled_dot_product_attention(q, decode(k.arrays, k_format, stream),
                                     decode(v.arrays, v_format, stream), scale, options, stream);
    return {mx::astype(out, q.dtype(), stream), lse};
  };
  if (!takes_call({kOp, place, coverage, options.route, options.force_fused})) {
    return without_kernel();
  }
  Arrays inputs{q};
  for (const auto* arrays : {&k.arrays, &v.arrays}) {
    inputs.insert(inputs.end(), arrays->begin(), arrays->end());
    if (arrays->size() == 2) inputs.push_back(arrays->back());
  }
  inputs.insert(inputs.end(), call.inputs.begin() + 3, call.inputs.end());
  QuantizedScaledDotProductAttention op(stream, call.settings, packed_format(k_format),
                                        packed_format(v_format));
  auto outputs = op.apply(inputs);
  if (!may_run(kOp, outputs[0], options.force_fused)) return without_kernel();
  return {outputs[0], outputs[1]};
}

Arrays QuantizedScaledDotProductAttention::with_part(const Arrays& inputs, int part) const {
  Arrays dense{inputs[0], inputs[1 + part], inputs[1 + kParts + part]};
  dense.insert(dense.end(), inputs.begin() + kFirstOption, inputs.end());
  return dense;
}

mx::Shape QuantizedScaledDotProductAttention::batch(const Arrays& inputs) const {
  mx::Shape batch;
  for (int part = 0; part < kParts; ++part) {
    batch = mx::broadcast_shapes(batch, attention_batch(with_part(inputs, part), settings_));
  }
  return batch;
}

Arrays QuantizedScaledDotProductAttention::apply(const Arrays& inputs) {
  auto primitive = std::make_shared<QuantizedScaledDotProductAttention>(stream(), settings_,
                                                                        formats_[0], formats_[1]);
  return mx::array::make_arrays(output_shapes(inputs), {inputs[0].dtype(), mx::float32}, primitive,
                                inputs);
}

std::vector<mx::Shape> QuantizedScaledDotProductAttention::output_shapes(const Arrays& inputs) {
  const auto &q = inputs[0], &v_scales = inputs[2 + kParts];
  for (int i = 0; i < 2; ++i) {
    const auto* packed = &inputs[1 + i * kParts];
    check_same_groups(kOp, packed[0], packed[1], packed[2], formats_[i].group_size,
                      formats_[i].bits);
  }
  int d = inputs[2].shape(-1) * formats_[0].group_size;
  if (q.shape(-1) != d) {
    fail(kOp, "q", "have the last dimension of k " + std::to_string(d),
         "shape " + to_string(q.shape()));
  }
  check_canonical_lengths(kOp, with_part(inputs, 0), settings_);
  auto lse = batch(inputs);
  lse.push_back(q.shape(-3));
  lse.push_back(q.shape(-2));
  auto out = lse;
  out.push_back(v_scales.shape(-1) * formats_[1].group_size);
  return {out, lse};
}

bool QuantizedScaledDotProductAttention::is_equivalent(const mx::Primitive& other) const {
  auto& o = static_cast<const QuantizedScaledDotProductAttention&>(other);
  return settings_ == o.settings_ && formats_ == o.formats_;
}

Arrays QuantizedScaledDotProductAttention::decoded(const Arrays& inputs) {
  auto s = stream();
  Arrays dense{mx::astype(inputs[0], mx::float32, s)};
  for (int i = 0; i < 2; ++i) {
    Arrays packed(inputs.begin() + 1 + i * kParts, inputs.begin() + 1 + (i + 1) * kParts);
    mx::Shape rows;  // Where vmap has mapped some of the three only, they broadcast.
    for (const auto& a : packed) {
      rows = mx::broadcast_shapes(rows, mx::Shape(a.shape().begin(), a.shape().end() - 1));
    }
    for (auto& a : packed) {
      auto shape = rows;
      shape.push_back(a.shape(-1));
      if (a.shape() != shape) a = mx::broadcast_to(a, shape, s);
    }
    const auto& format = formats_[i];
    dense.push_back(decode(packed, {format.mode, format.group_size, format.bits}, s));
  }
  dense.insert(dense.end(), inputs.begin() + kFirstOption, inputs.end());
  auto outputs = ScaledDotProductAttention(s, settings_).apply(dense);
  return {mx::astype(outputs[0], inputs[0].dtype(), s), outputs[1]};
}

Arrays QuantizedScaledDotProductAttention::jvp(const Arrays& primals, const Arrays& tangents,
                                               const std::vector<int>& argnums) {
  for (int arg : {1, 1 + kParts}) refuse_packed(kOp, arg, argnums);
  auto function = [this](const Arrays& inputs) { return decoded(inputs); };
  return jvp_through(function, primals, tangents, argnums, stream());
}

Arrays QuantizedScaledDotProductAttention::vjp(const Arrays& primals, const Arrays& cotangents,
                                               const std::vector<int>& argnums, const Arrays&) {
  for (int arg : {1, 1 + kParts}) refuse_packed(kOp, arg, argnums);
  auto function = [this](const Arrays& inputs) { return decoded(inputs); };
  return vjp_through(function, primals, cotangents, argnums, stream());
}

std::pair<Arrays, std::vector<int>> QuantizedScaledDotProductAttention::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  Arrays moved = inputs;
  for (int part = 0; part < kParts; ++part) {
    std::vector<int> dense_axes{axes[0], axes[1 + part], axes[1 + kParts + part]};
    dense_axes.insert(dense_axes.end(), axes.begin() + kFirstOption, axes.end());
    auto dense =
        with_mapped_attention_axis(with_part(inputs, part), dense_axes, settings_, stream());
    moved[0] = dense[0];
    moved[1 + part] = dense[1];
    moved[1 + kParts + part] = dense[2];
    std::copy(dense.begin() + 3, dense.end(), moved.begin() + kFirstOption);
  }
  return {apply(moved), {0, 0}};
}

}  // namespace mto
