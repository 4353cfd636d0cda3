#include "ops/scaled_dot_product_attention/scaled_dot_product_attention.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "common/route.h"
#include "common/transforms.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_checks.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_graph.h"
#include "ops/scaled_dot_product_attention/scaled_dot_product_attention_mlx.h"

namespace mto {
namespace {

using enum AttentionInput;

constexpr const char* kOp = "scaled_dot_product_attention";

// The axes behind the batch. The outputs and their cotangents follow the inputs of a backward pass.
int n_own_axes(const AttentionSettings& settings, int position) {
  if (position < 3) return 3;
  if (position >= settings.n_inputs()) return (position - settings.n_inputs()) % 2 == 0 ? 3 : 2;
  for (auto input : {kMask, kBlockMask}) {
    if (settings.has(input) && settings.at(input) == position) return 3;
  }
  return 1;
}

bool has_batch(const AttentionSettings& settings, int position) {
  if (position >= settings.n_inputs()) return true;
  for (auto input : {kQDocuments, kKDocuments}) {
    if (settings.has(input) && settings.at(input) == position) return false;
  }
  return true;
}

mx::Shape shape_with(mx::Shape batch, std::initializer_list<int> own) {
  batch.insert(batch.end(), own.begin(), own.end());
  return batch;
}

using Arrays = std::vector<mx::array>;

std::vector<int> first_axes(const Arrays& outputs) { return std::vector<int>(outputs.size(), 0); }

Arrays make_arrays(const std::vector<mx::Shape>& shapes, const std::vector<mx::Dtype>& dtypes,
                   std::shared_ptr<mx::Primitive> primitive, const Arrays& inputs) {
  return mx::array::make_arrays(shapes, dtypes, std::move(primitive), inputs);
}

}  // namespace

mx::Shape attention_batch(const Arrays& inputs, const AttentionSettings& settings) {
  mx::Shape batch;
  for (int i = 0; i < static_cast<int>(inputs.size()); ++i) {
    if (!has_batch(settings, i)) continue;
    const auto& shape = inputs[i].shape();
    batch = mx::broadcast_shapes(batch,
                                 mx::Shape(shape.begin(), shape.end() - n_own_axes(settings, i)));
  }
  return batch;
}

Arrays with_mapped_attention_axis(const Arrays& inputs, const std::vector<int>& axes,
                                  const AttentionSettings& settings, mx::Stream s) {
  Arrays moved;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!has_batch(settings, static_cast<int>(i))) {
      if (axes[i] >= 0) fail(kOp, "cu_seqlens", "not be mapped by vmap", "a mapped array");
      moved.push_back(inputs[i]);
    } else {
      moved.push_back(axes[i] < 0 ? mx::expand_dims(inputs[i], 0, s)
                                  : mx::moveaxis(inputs[i], axes[i], 0, s));
    }
  }
  return moved;
}

std::pair<mx::array, mx::array> scaled_dot_product_attention(const mx::array& q, const mx::array& k,
                                                             const mx::array& v, double scale,
                                                             const AttentionOptions& options,
                                                             mx::StreamOrDevice s) {
  auto stream = mx::to_stream(s);
  check_attention_operands(kOp, q, k, v);
  auto call = canonical_call(kOp, q, k, v, scale, options, stream);
  auto place = place_of(stream);
  bool mlx_takes = mlx_takes_attention(call, options);
  Coverage coverage{
      unsupported_attention(place.backend, call.inputs[0].dtype(), q.shape(-1), v.shape(-1)),
      mlx_takes && mlx_fuses_attention(call)};
  if (takes_call({kOp, place, coverage, options.route, options.force_fused})) {
    auto outputs = ScaledDotProductAttention(stream, call.settings).apply(call.inputs);
    if (may_run(kOp, outputs[0], options.force_fused)) return {outputs[0], outputs[1]};
  }
  if (mlx_takes) {
    auto out = mlx_attention(call, options, stream);
    return {out, out};
  }
  auto outputs = attention_graph(call.inputs, call.settings, stream);
  return {outputs[0], outputs[1]};
}

Arrays ScaledDotProductAttention::apply(const Arrays& inputs) {
  auto primitive = std::make_shared<ScaledDotProductAttention>(stream(), settings_);
  return make_arrays(output_shapes(inputs), {inputs[0].dtype(), mx::float32}, primitive, inputs);
}

std::vector<mx::Shape> ScaledDotProductAttention::output_shapes(const Arrays& inputs) {
  check_canonical(kOp, inputs, settings_);
  auto batch = attention_batch(inputs, settings_);
  int n_heads = inputs[0].shape(-3), n_q = inputs[0].shape(-2);
  return {shape_with(batch, {n_heads, n_q, inputs[2].shape(-1)}),
          shape_with(batch, {n_heads, n_q})};
}

bool ScaledDotProductAttention::is_equivalent(const mx::Primitive& other) const {
  return settings_ == static_cast<const ScaledDotProductAttention&>(other).settings_;
}

Arrays ScaledDotProductAttention::jvp(const Arrays& primals, const Arrays& tangents,
                                      const std::vector<int>& argnums) {
  auto graph = [settings = settings_, s = stream()](const Arrays& inputs) {
    return attention_graph(inputs, settings, s);
  };
  return jvp_through(graph, primals, tangents, argnums, stream());
}

// With p_s = exp(sink - lse): d_sink = sum over rows of p_s * (d_lse - d_out . out).
mx::array ScaledDotProductAttention::sinks_grad(const Arrays& primals, const mx::array& d_out,
                                                const mx::array& d_lse, const Arrays& outputs) {
  auto s = stream();
  const auto &sinks = primals[settings_.at(kSinks)], &lse = outputs[1];
  auto delta = mx::sum(
      mx::multiply(mx::astype(d_out, mx::float32, s), mx::astype(outputs[0], mx::float32, s), s),
      -1, false, s);
  auto logits = mx::subtract(mx::expand_dims(sinks, -1, s), lse, s);
  auto empty = mx::equal(lse, mx::array(-std::numeric_limits<float>::infinity()), s);
  auto weights = mx::where(empty, mx::array(0.0f), mx::exp(logits, s), s);
  auto grad = mx::sum(mx::multiply(weights, mx::subtract(d_lse, delta, s), s), -1, false, s);
  return sum_to(grad, sinks.shape(), sinks.dtype(), s);
}

Arrays ScaledDotProductAttention::vjp(const Arrays& primals, const Arrays& cotangents,
                                      const std::vector<int>& argnums, const Arrays& outputs) {
  auto wants = [&](AttentionInput input) {
    if (!settings_.has(input)) return false;
    int at = settings_.at(input);
    return std::find(argnums.begin(), argnums.end(), at) != argnums.end() &&
           is_differentiable(primals[at]);
  };
  auto d_out = as_cotangent(kOp, cotangents[0], outputs[0], stream());
  auto d_lse = as_cotangent(kOp, cotangents[1], outputs[1], stream());
  auto inputs = primals;
  for (const auto& a : {outputs[0], outputs[1], d_out, d_lse}) inputs.push_back(a);
  ScaledDotProductAttentionVJP backward(stream(), settings_, wants(kMask), wants(kAlibi));
  std::optional<Arrays> found;
  auto grads = [&]() -> const Arrays& {
    if (!found) {
      found = backward.apply(inputs);
      if (!may_run(kOp, found->front(), false)) found = backward.graph(inputs);
    }
    return *found;
  };
  Arrays result;
  for (int arg : argnums) {
    const auto& primal = primals[arg];
    auto is = [&](AttentionInput i) { return wants(i) && settings_.at(i) == arg; };
    if (arg < 3) {
      result.push_back(sum_to(grads()[arg], primal.shape(), primal.dtype(), stream()));
    } else if (is(kMask)) {
      result.push_back(mx::astype(grads()[3], primal.dtype(), stream()));
    } else if (is(kAlibi)) {
      result.push_back(sum_to(grads().back(), primal.shape(), primal.dtype(), stream()));
    } else if (is(kSinks)) {
      result.push_back(sinks_grad(primals, d_out, d_lse, outputs));
    } else {
      result.push_back(zeros_of(primal, primal.dtype(), stream()));
    }
  }
  return result;
}

std::pair<Arrays, std::vector<int>> ScaledDotProductAttention::vmap(const Arrays& inputs,
                                                                    const std::vector<int>& axes) {
  auto outputs = apply(with_mapped_attention_axis(inputs, axes, settings_, stream()));
  return {outputs, first_axes(outputs)};
}

// Where gradients are summed over batches afterwards, they are not rounded before.
mx::Dtype ScaledDotProductAttentionVJP::grad_dtype(const Arrays& inputs) const {
  auto batch = attention_batch(inputs, settings_);
  bool whole = std::all_of(inputs.begin(), inputs.begin() + 3, [&](const mx::array& a) {
    return mx::Shape(a.shape().begin(), a.shape().end() - 3) == batch;
  });
  return whole ? inputs[0].dtype() : mx::float32;
}

Arrays ScaledDotProductAttentionVJP::apply(const Arrays& inputs) {
  auto primitive = std::make_shared<ScaledDotProductAttentionVJP>(stream(), settings_, wants_mask_,
                                                                  wants_alibi_);
  std::vector<mx::Dtype> dtypes(3, grad_dtype(inputs));
  if (wants_mask_) dtypes.push_back(mx::float32);
  if (wants_alibi_) dtypes.push_back(mx::float32);
  return make_arrays(output_shapes(inputs), dtypes, primitive, inputs);
}

std::vector<mx::Shape> ScaledDotProductAttentionVJP::output_shapes(const Arrays& inputs) {
  check_canonical(kOp, inputs, settings_);
  auto batch = attention_batch(inputs, settings_);
  std::vector<mx::Shape> shapes;
  for (int i = 0; i < 3; ++i) {
    const auto& a = inputs[i];
    shapes.push_back(shape_with(batch, {a.shape(-3), a.shape(-2), a.shape(-1)}));
  }
  if (wants_mask_) shapes.push_back(inputs[settings_.at(kMask)].shape());
  if (wants_alibi_) shapes.push_back(shape_with(batch, {inputs[0].shape(-3)}));
  return shapes;
}

bool ScaledDotProductAttentionVJP::is_equivalent(const mx::Primitive& other) const {
  auto& o = static_cast<const ScaledDotProductAttentionVJP&>(other);
  return settings_ == o.settings_ && wants_mask_ == o.wants_mask_ && wants_alibi_ == o.wants_alibi_;
}

Arrays ScaledDotProductAttentionVJP::graph(const Arrays& inputs) {
  auto s = stream();
  int n = settings_.n_inputs();
  auto batch = attention_batch(inputs, settings_);
  auto dtype = grad_dtype(inputs);
  Arrays primals(inputs.begin(), inputs.begin() + n);
  auto whole = [&](int position, mx::Dtype dtype) {
    const auto& a = primals[position];
    auto shape = batch;
    shape.insert(shape.end(), a.shape().end() - n_own_axes(settings_, position), a.shape().end());
    primals[position] = mx::broadcast_to(mx::astype(a, dtype, s), shape, s);
    return position;
  };
  std::vector<int> argnums{whole(0, dtype), whole(1, dtype), whole(2, dtype)};
  if (wants_mask_) {
    argnums.push_back(settings_.at(kMask));
    primals[argnums.back()] = mx::astype(primals[argnums.back()], mx::float32, s);
  }
  if (wants_alibi_) argnums.push_back(whole(settings_.at(kAlibi), mx::float32));
  auto forward = [&](const Arrays& inputs) { return attention_graph(inputs, settings_, s); };
  return vjp_through(forward, primals, {mx::astype(inputs[n + 2], dtype, s), inputs[n + 3]},
                     argnums, s);
}

// out and lse, which the graph computes again, count as constants: their share is in the primals'.
Arrays ScaledDotProductAttentionVJP::jvp(const Arrays& primals, const Arrays& tangents,
                                         const std::vector<int>& argnums) {
  auto function = [this](const Arrays& inputs) { return graph(inputs); };
  return jvp_through(function, primals, tangents, argnums, stream());
}

Arrays ScaledDotProductAttentionVJP::vjp(const Arrays& primals, const Arrays& cotangents,
                                         const std::vector<int>& argnums, const Arrays&) {
  auto function = [this](const Arrays& inputs) { return graph(inputs); };
  return vjp_through(function, primals, cotangents, argnums, stream());
}

std::pair<Arrays, std::vector<int>> ScaledDotProductAttentionVJP::vmap(
    const Arrays& inputs, const std::vector<int>& axes) {
  auto moved = with_mapped_attention_axis(inputs, axes, settings_, stream());
  if (wants_mask_) {
    // One gradient a mapped element, also of a mask that they share.
    auto& mask = moved[settings_.at(kMask)];
    auto shape = mask.shape();
    shape[0] = attention_batch(moved, settings_)[0];
    mask = mx::broadcast_to(mask, shape, stream());
  }
  auto outputs = apply(moved);
  return {outputs, first_axes(outputs)};
}

}  // namespace mto
