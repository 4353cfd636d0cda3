#include "ops/dequantize/dequantize.h"

#include "common/route.h"
#include "common/transforms.h"
#include "ops/dequantize/dequantize_format.h"

namespace mto {
namespace {

constexpr const char* kOp = "dequantize";

mx::array make(const mx::array& w, const mx::array& scales, const mx::array& biases, int group_size,
               int bits, mx::Dtype dtype, mx::Stream stream, bool force_fused = false) {
  auto primitive = std::make_shared<Dequantize>(stream, group_size, bits, dtype);
  auto inputs = kernel_inputs({w, scales, biases}, stream);
  auto shape = primitive->output_shapes(inputs)[0];
  mx::array out(std::move(shape), dtype, primitive, std::move(inputs));
  if (may_run(kOp, out, force_fused)) return out;
  return mx::dequantize(w, scales, biases, group_size, bits, "affine", std::nullopt, dtype, stream);
}

}  // namespace

mx::array dequantize(const mx::array& w, const std::optional<mx::array>& scales,
                     const std::optional<mx::array>& biases,
                     const std::optional<GroupSize>& group_size, std::optional<int> bits,
                     const std::string& mode, const std::optional<mx::array>& global_scale,
                     std::optional<mx::Dtype> dtype, const std::optional<std::string>& route,
                     bool force_fused, mx::StreamOrDevice s) {
  auto stream = mx::to_stream(s);
  auto call = check_format_call(kOp, mode, group_size, bits);
  auto packed = check_packed(kOp, call, w, scales, biases, global_scale, stream);
  if (dtype && !mx::issubdtype(*dtype, mx::floating)) {
    fail(kOp, "dtype", "be a real floating type", to_string(*dtype));
  }
  auto out_dtype = dtype.value_or(default_dtype(call, packed));
  if (!mx::issubdtype(out_dtype, mx::floating)) {
    fail(kOp, "scales or biases", "be of a floating type", to_string(packed[1].dtype()));
  }
  auto dtypes = packed_dtypes(call, packed);
  dtypes.push_back({"the output", out_dtype});
  auto place = place_of(stream);
  if (takes_call({kOp, place, coverage_of(place, call, dtypes), route, force_fused})) {
    if (has_affine_kernels(call)) {
      return make(w, packed[1], packed[2], call.group_cols, call.bits, out_dtype, stream,
                  force_fused);
    }
    return DequantizeFormat(stream, call, out_dtype).apply(packed, force_fused);
  }
  check_known_to_mlx(kOp, call);
  return mx::dequantize(w, *scales, biases, call.group_cols, call.bits, mode, global_scale, dtype,
                        stream);
}

mx::array affine_codes(const mx::array& w, const mx::array& scales, int group_size, int bits,
                       mx::Stream stream) {
  auto ones = ones_of(scales, mx::float32, stream);
  return make(w, ones, zeros_of(scales, mx::float32, stream), group_size, bits, mx::float32,
              stream);
}

std::vector<mx::Shape> Dequantize::output_shapes(const std::vector<mx::array>& inputs) {
  check_same_groups(kOp, inputs[0], inputs[1], inputs[2], group_size_, bits_);
  auto shape = inputs[1].shape();
  shape.back() *= group_size_;
  return {shape};
}

bool Dequantize::is_equivalent(const mx::Primitive& other) const {
  auto& o = static_cast<const Dequantize&>(other);
  return group_size_ == o.group_size_ && bits_ == o.bits_ && dtype_ == o.dtype_;
}

mx::array Dequantize::apply(const mx::array& w, const mx::array& scales, const mx::array& biases) {
  return make(w, scales, biases, group_size_, bits_, dtype_, stream());
}

// Linear in scales and biases.
std::vector<mx::array> Dequantize::jvp(const std::vector<mx::array>& primals,
                                       const std::vector<mx::array>& tangents,
                                       const std::vector<int>& argnums) {
  refuse_packed(kOp, 0, argnums);
  return {apply(primals[0], tangent_or_zeros(primals[1], 1, tangents, argnums, stream()),
                tangent_or_zeros(primals[2], 2, tangents, argnums, stream()))};
}

std::vector<mx::array> Dequantize::vjp(const std::vector<mx::array>& primals,
                                       const std::vector<mx::array>& cotangents,
                                       const std::vector<int>& argnums,
                                       const std::vector<mx::array>& outputs) {
  refuse_packed(kOp, 0, argnums);
  auto s = stream();
  auto cotangent = as_cotangent(kOp, cotangents[0], outputs[0], s);
  auto grad = split_groups(mx::astype(cotangent, mx::float32, s), group_size_, s);
  std::vector<mx::array> grads;
  for (int arg : argnums) {
    auto terms = grad;
    if (arg == 1) {
      auto codes = affine_codes(primals[0], primals[1], group_size_, bits_, s);
      terms = mx::multiply(grad, split_groups(codes, group_size_, s), s);
    }
    grads.push_back(mx::astype(mx::sum(terms, -1, false, s), primals[arg].dtype(), s));
  }
  return grads;
}

std::pair<std::vector<mx::array>, std::vector<int>> Dequantize::vmap(
    const std::vector<mx::array>& inputs, const std::vector<int>& axes) {
  auto moved = with_batch_axis(inputs, axes, 0, stream());
  int n_batch = 1;
  for (const auto& a : moved) n_batch = a.shape(0) == 1 ? n_batch : a.shape(0);
  for (auto& a : moved) {
    auto shape = a.shape();
    shape[0] = n_batch;
    a = mx::broadcast_to(a, shape, stream());
  }
  return {{apply(moved[0], moved[1], moved[2])}, {0}};
}

}  // namespace mto
