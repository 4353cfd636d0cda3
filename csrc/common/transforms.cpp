#include "common/transforms.h"

#include <algorithm>

namespace mto {
namespace {

using Arrays = std::vector<mx::array>;

// The function of those inputs that have a derivative, and their values.
struct Restricted {
  Restricted(const ArraysFunction& function, const Arrays& primals,
             const std::vector<int>& argnums) {
    for (int arg : argnums) {
      if (!is_differentiable(primals[arg])) continue;
      positions.push_back(arg);
      values.push_back(primals[arg]);
    }
    call = [function, primals, positions = positions](const Arrays& values) {
      auto inputs = primals;
      for (size_t i = 0; i < positions.size(); ++i) inputs[positions[i]] = values[i];
      return function(inputs);
    };
  }

  std::vector<int> positions;
  Arrays values;
  ArraysFunction call;
};

class FixedShape : public mx::UnaryPrimitive {
 public:
  FixedShape(mx::Stream stream, std::string op, mx::Shape shape)
      : mx::UnaryPrimitive(stream), op_(std::move(op)), shape_(std::move(shape)) {}

  void eval_cpu(const Arrays& inputs, mx::array& out) override { share(inputs, out); }
  void eval_gpu(const Arrays& inputs, mx::array& out) override { share(inputs, out); }
  Arrays jvp(const Arrays&, const Arrays& tangents, const std::vector<int>&) override {
    return {of_fixed_shape(op_, tangents[0], stream())};
  }
  Arrays vjp(const Arrays&, const Arrays& cotangents, const std::vector<int>&,
             const Arrays&) override {
    return {of_fixed_shape(op_, cotangents[0], stream())};
  }
  std::pair<Arrays, std::vector<int>> vmap(const Arrays& inputs,
                                           const std::vector<int>& axes) override {
    return {{of_fixed_shape(op_, inputs[0], stream())}, axes};
  }
  const char* name() const override { return "mlx_tensorops::FixedShape"; }
  bool is_equivalent(const mx::Primitive& other) const override {
    return shape_ == static_cast<const FixedShape&>(other).shape_;
  }
  std::vector<mx::Shape> output_shapes(const Arrays& inputs) override {
    if (inputs[0].shape() != shape_) {
      fail(op_, "a gradient of scales of several rows",
           "keep its shape " + to_string(shape_) + " under mx.compile(shapeless=True)",
           to_string(inputs[0].shape()));
    }
    return {shape_};
  }

 private:
  static void share(const Arrays& inputs, mx::array& out) { out.copy_shared_buffer(inputs[0]); }

  std::string op_;
  mx::Shape shape_;
};

}  // namespace

mx::array of_fixed_shape(std::string_view op, const mx::array& a, mx::Stream s) {
  auto primitive = std::make_shared<FixedShape>(s, std::string(op), a.shape());
  return mx::array(a.shape(), a.dtype(), primitive, {a});
}

mx::array sum_to(const mx::array& a, const mx::Shape& shape, mx::Dtype dtype, mx::Stream s) {
  int n_leading = static_cast<int>(a.ndim() - shape.size());
  std::vector<int> axes;
  for (int axis = 0; axis < static_cast<int>(a.ndim()); ++axis) {
    if (axis < n_leading || shape[axis - n_leading] != a.shape(axis)) axes.push_back(axis);
  }
  auto sum = axes.empty() ? a : mx::reshape(mx::sum(a, axes, true, s), shape, s);
  return mx::astype(sum, dtype, s);
}

mx::array ones_of(const mx::array& a, mx::Dtype dtype, mx::Stream s) {
  // True also for NaN.
  auto yes = mx::logical_or(mx::equal(a, a, s), mx::not_equal(a, a, s), s);
  return mx::astype(yes, dtype, s);
}

mx::array zeros_of(const mx::array& a, mx::Dtype dtype, mx::Stream s) {
  return mx::subtract(ones_of(a, dtype, s), mx::array(1, dtype), s);
}

mx::array as_cotangent(std::string_view op, const mx::array& cotangent, const mx::array& output,
                       mx::Stream s) {
  auto out = mx::astype(cotangent, output.dtype(), s);
  if (out.shape() == output.shape()) return out;
  bool fits = out.ndim() <= output.ndim();
  for (int axis = 1; fits && axis <= static_cast<int>(out.ndim()); ++axis) {
    fits = out.shape(-axis) == 1 || out.shape(-axis) == output.shape(-axis);
  }
  if (!fits) {
    fail(op, "a cotangent", "have the shape of the output " + to_string(output.shape()),
         to_string(out.shape()));
  }
  return mx::broadcast_to(out, output.shape(), s);
}

mx::array tangent_or_zeros(const mx::array& primal, int arg, const std::vector<mx::array>& tangents,
                           const std::vector<int>& argnums, mx::Stream s) {
  auto at = std::find(argnums.begin(), argnums.end(), arg);
  if (at == argnums.end()) return zeros_of(primal, primal.dtype(), s);
  return mx::astype(tangents[at - argnums.begin()], primal.dtype(), s);
}

void refuse_packed(std::string_view op, int arg, const std::vector<int>& argnums) {
  if (std::find(argnums.begin(), argnums.end(), arg) != argnums.end()) {
    fail(op, "the packed w", "not be differentiated", "it among the differentiated arguments");
  }
}

std::vector<mx::array> with_batch_axis(const std::vector<mx::array>& inputs,
                                       const std::vector<int>& axes, int n_dims, mx::Stream s) {
  std::vector<mx::array> out;
  for (size_t i = 0; i < inputs.size(); ++i) {
    mx::array a =
        axes[i] < 0 ? mx::expand_dims(inputs[i], 0, s) : mx::moveaxis(inputs[i], axes[i], 0, s);
    int n_missing = n_dims + 1 - static_cast<int>(a.ndim());
    if (n_missing > 0) {
      std::vector<int> new_axes;
      for (int axis = 1; axis <= n_missing; ++axis) new_axes.push_back(axis);
      a = mx::expand_dims(a, new_axes, s);
    }
    out.push_back(a);
  }
  return out;
}

bool is_differentiable(const mx::array& a) { return mx::issubdtype(a.dtype(), mx::floating); }

std::vector<mx::array> jvp_through(const ArraysFunction& function, const Arrays& primals,
                                   const Arrays& tangents, const std::vector<int>& argnums,
                                   mx::Stream s) {
  Restricted restricted(function, primals, argnums);
  Arrays of_values;
  for (int arg : restricted.positions) {
    of_values.push_back(tangent_or_zeros(primals[arg], arg, tangents, argnums, s));
  }
  return mx::jvp(restricted.call, restricted.values, of_values).second;
}

std::vector<mx::array> vjp_through(const ArraysFunction& function, const Arrays& primals,
                                   const Arrays& cotangents, const std::vector<int>& argnums,
                                   mx::Stream s) {
  Restricted restricted(function, primals, argnums);
  auto gradients = mx::vjp(restricted.call, restricted.values, cotangents).second;
  Arrays all;
  for (int arg : argnums) {
    auto at = std::find(restricted.positions.begin(), restricted.positions.end(), arg);
    all.push_back(at == restricted.positions.end() ? zeros_of(primals[arg], primals[arg].dtype(), s)
                                                   : gradients[at - restricted.positions.begin()]);
  }
  return all;
}

mx::array split_groups(const mx::array& a, int group_size, mx::Stream s) {
  // MLX keeps the number of groups under mx.compile(shapeless=True): there the last axis is fixed.
  return mx::unflatten(a, -1, {a.shape(-1) / group_size, group_size}, s);
}

}  // namespace mto
