#pragma once

#include <mlx/mlx.h>

#include <cstdint>
#include <vector>

namespace mto::metal {

// The table of metal/tile/batch.h for row-contiguous arrays of matrices whose leading dimensions
// broadcast to `batch`. Dimensions that all arrays step through evenly are one.
inline std::vector<int64_t> batch_table(const mlx::core::Shape& batch,
                                        const std::vector<mlx::core::array>& arrays) {
  const size_t width = 1 + arrays.size();
  std::vector<int64_t> strides;
  for (const auto& a : arrays) strides.push_back(int64_t{a.shape(-1)} * a.shape(-2));
  std::vector<int64_t> rows;  // innermost first
  for (int axis = 1; axis <= static_cast<int>(batch.size()); ++axis) {
    std::vector<int64_t> row{batch[batch.size() - axis]};
    for (size_t i = 0; i < arrays.size(); ++i) {
      bool has = arrays[i].ndim() >= axis + 2 && arrays[i].shape(-2 - axis) != 1;
      row.push_back(has ? strides[i] : 0);
      if (has) strides[i] *= row[0];
    }
    if (row[0] == 1) continue;
    const int64_t* inner = rows.empty() ? nullptr : &rows[rows.size() - width];
    bool even = inner != nullptr;
    for (size_t i = 1; even && i < width; ++i) even = row[i] == inner[i] * inner[0];
    if (even) {
      rows[rows.size() - width] *= row[0];
    } else {
      rows.insert(rows.end(), row.begin(), row.end());
    }
  }
  std::vector<int64_t> table;
  for (size_t end = rows.size(); end > 0; end -= width) {
    table.insert(table.end(), rows.begin() + (end - width), rows.begin() + end);
  }
  return table;
}

}  // namespace mto::metal
