#pragma once

#include <functional>

#include "common/check.h"

namespace mto {

// Sums over the axes along which `a` was broadcast from `shape`, and casts.
mx::array sum_to(const mx::array& a, const mx::Shape& shape, mx::Dtype dtype, mx::Stream s);

// Ones and zeros of the shape that `a` has when the graph runs: a constant would keep the shape of
// the first call under mx.compile(shapeless=True).
mx::array ones_of(const mx::array& a, mx::Dtype dtype, mx::Stream s);
mx::array zeros_of(const mx::array& a, mx::Dtype dtype, mx::Stream s);

// A cotangent as the op's own output would be: mx.custom_function may give another dtype, or a
// shape that broadcasts. ValueError where it does not.
mx::array as_cotangent(std::string_view op, const mx::array& cotangent, const mx::array& output,
                       mx::Stream s);

// The tangent of input `arg` in the dtype of the input, or zeros.
mx::array tangent_or_zeros(const mx::array& primal, int arg, const std::vector<mx::array>& tangents,
                           const std::vector<int>& argnums, mx::Stream s);

// Refuses to differentiate with respect to packed codes (input `arg`).
void refuse_packed(std::string_view op, int arg, const std::vector<int>& argnums);

// Inputs of a vmapped call with the mapped axis first, where there is one; axes of size 1 follow
// it, so that all of them broadcast: every result has n_dims dimensions and one more.
std::vector<mx::array> with_batch_axis(const std::vector<mx::array>& inputs,
                                       const std::vector<int>& axes, int n_dims, mx::Stream s);

// Derivatives of an op through a function of its inputs that is composed of other ops. Inputs that
// are not floating have none.
using ArraysFunction = std::function<std::vector<mx::array>(const std::vector<mx::array>&)>;
std::vector<mx::array> jvp_through(const ArraysFunction& function,
                                   const std::vector<mx::array>& primals,
                                   const std::vector<mx::array>& tangents,
                                   const std::vector<int>& argnums, mx::Stream s);
std::vector<mx::array> vjp_through(const ArraysFunction& function,
                                   const std::vector<mx::array>& primals,
                                   const std::vector<mx::array>& cotangents,
                                   const std::vector<int>& argnums, mx::Stream s);
bool is_differentiable(const mx::array& a);

// The array itself, for graphs whose further nodes keep its shape: run on another shape, under
// mx.compile(shapeless=True), it is a ValueError and not a wrong result.
mx::array of_fixed_shape(std::string_view op, const mx::array& a, mx::Stream s);

// Groups along the last axis: [.., n] -> [.., n / group_size, group_size].
mx::array split_groups(const mx::array& a, int group_size, mx::Stream s);

}  // namespace mto
