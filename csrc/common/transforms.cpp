#include "common/transforms.h"

#include <algorithm>

namespace mto {

mx::array sum_to(const mx::array& a, const mx::Shape& shape, mx::Dtype dtype, mx::Stream s) {
  int n_leading = static_cast<int>(a.ndim() - shape.size());
  std::vector<int> axes;
  for (int axis = 0; axis < static_cast<int>(a.ndim()); ++axis) {
    if (axis < n_leading || shape[axis - n_leading] != a.shape(axis)) axes.push_back(axis);
  }
  auto sum = axes.empty() ? a : mx::reshape(mx::sum(a, axes, true, s), shape, s);
  return mx::astype(sum, dtype, s);
}

mx::array tangent_or_zeros(const mx::array& primal, int arg, const std::vector<mx::array>& tangents,
                           const std::vector<int>& argnums, mx::Stream s) {
  auto at = std::find(argnums.begin(), argnums.end(), arg);
  return at == argnums.end() ? mx::zeros_like(primal, s) : tangents[at - argnums.begin()];
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

mx::array split_groups(const mx::array& a, int group_size, mx::Stream s) {
  return mx::unflatten(a, -1, {a.shape(-1) / group_size, group_size}, s);
}

}  // namespace mto
