#include "metal/strided.h"

#include <algorithm>

namespace mto::metal {

std::pair<int64_t, int64_t> span_of(const mx::array& a) {
  int64_t begin = 0, end = a.size() > 0;
  for (size_t axis = 0; a.size() > 0 && axis < a.ndim(); ++axis) {
    int64_t last = (int64_t{a.shape()[axis]} - 1) * a.strides()[axis];
    (last < 0 ? begin : end) += last;
  }
  return {begin, end};
}

std::vector<int64_t> batch_strides(const mx::array& a, const mx::Shape& batch, int n_own) {
  std::vector<int64_t> strides(batch.size(), 0);
  int n_missing = static_cast<int>(batch.size()) + n_own - static_cast<int>(a.ndim());
  for (int dim = n_missing; dim < static_cast<int>(batch.size()); ++dim) {
    int own = dim - n_missing;
    if (a.shape()[own] != 1) strides[dim] = a.strides()[own];
  }
  return strides;
}

std::vector<int64_t> batch_table(const mx::Shape& batch,
                                 const std::vector<std::vector<int64_t>>& strides) {
  const size_t width = 1 + strides.size();
  std::vector<int64_t> table;  // outermost first
  for (size_t dim = 0; dim < batch.size(); ++dim) {
    if (batch[dim] == 1) continue;
    std::vector<int64_t> row{batch[dim]};
    for (const auto& of : strides) row.push_back(of[dim]);
    int64_t* outer = table.empty() ? nullptr : &table[table.size() - width];
    bool even = outer != nullptr;
    for (size_t i = 1; even && i < width; ++i) even = outer[i] == row[i] * row[0];
    if (even) {
      row[0] *= outer[0];
      std::copy(row.begin(), row.end(), outer);
    } else {
      table.insert(table.end(), row.begin(), row.end());
    }
  }
  return table;
}

mx::array dense_copy(Encoder& encoder, const mx::array& a) {
  mx::array copy(a.shape(), a.dtype(), nullptr, {});
  encoder.allocate(copy);
  encoder.keep(copy);
  if (a.size() == 0) return copy;
  std::vector<int64_t> table;
  for (size_t axis = 0; axis < a.ndim(); ++axis) {
    table.insert(table.end(), {a.shape()[axis], a.strides()[axis]});
  }
  auto [begin, end] = span_of(a);
  const char* type = a.itemsize() == 4 ? "uint" : a.itemsize() == 2 ? "ushort" : "uchar";
  encoder.pipeline({"copy_strided", std::string("copy_strided<") + type + ">", {}});
  encoder.view(a, begin, end, 0);
  encoder.output(copy, 1);
  encoder.bytes(table.data(), table.size() * sizeof(int64_t), 2);
  encoder.value(static_cast<int32_t>(a.ndim()), 3);
  encoder.value(-begin, 4);
  encoder.dispatch_each(static_cast<int64_t>(a.size()), 5);
  return copy;
}

}  // namespace mto::metal
