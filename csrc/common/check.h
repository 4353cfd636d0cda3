#pragma once

#include <mlx/mlx.h>
#include <mlx/primitives.h>

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/float_type.h"

namespace mto {

namespace mx = mlx::core;

// Throws std::invalid_argument (ValueError): "[op] <arg> must <rule>, got <value>."
[[noreturn]] void fail(std::string_view op, std::string_view arg, std::string_view rule,
                       std::string_view value);

std::string to_string(const mx::Shape& shape);
std::string to_string(mx::Dtype dtype);
std::string number(double value);

// Empty where kernels do not handle the dtype.
std::optional<FloatType> float_type(mx::Dtype dtype);

// The format's facts of a call, with defaults filled in. Checks mode, bits and group size.
struct Format {
  std::string mode;
  int group_size;
  int bits;
  bool affine() const { return mode == "affine"; }
};
Format check_format(std::string_view op, const std::string& mode, std::optional<int> group_size,
                    std::optional<int> bits);

// Checks that w, scales and biases are one affine-quantized array; returns its last dimension.
int check_affine_operands(std::string_view op, const mx::array& w, const mx::array& scales,
                          const std::optional<mx::array>& biases, const Format& format);

// True for "tf32", false for None.
bool check_precision(std::string_view op, const std::optional<std::string>& precision);

// That w, scales and biases agree, for output_shapes: mx.compile(shapeless=True) runs a traced
// graph on other shapes, past the op function and its checks.
void check_same_groups(std::string_view op, const mx::array& w, const mx::array& scales,
                       const mx::array& biases, int group_size, int bits);

// For the modes that are MLX's: what MLX reads out of bounds, or divides by, unchecked.
void check_other_mode(std::string_view op, const mx::array& w, const mx::array& scales);

// Why no kernel of a backend covers such a call, in words; empty where one does. Asked by the ops
// to choose the route, and through _ext.supports by the tests and by the generator of SUPPORT.md.
using NamedDtypes = std::vector<std::pair<std::string, mx::Dtype>>;
std::string unsupported(std::string_view backend, const Format& format, const NamedDtypes& dtypes);

}  // namespace mto
