#include "common/check.h"

#include <algorithm>
#include <limits>
#include <sstream>
#include <stdexcept>

#include "formats/affine.h"

namespace mto {
namespace {

template <typename Values>
std::string join(const Values& values) {
  std::ostringstream out;
  const char* separator = "";
  for (const auto& value : values) {
    out << separator << value;
    separator = ", ";
  }
  return out.str();
}

constexpr const char* kModes[] = {"affine", "mxfp4", "mxfp8", "nvfp4"};

template <typename Values, typename T>
bool one_of(const Values& values, const T& value) {
  return std::find(std::begin(values), std::end(values), value) != std::end(values);
}

template <typename Values>
void check_one_of(std::string_view op, std::string_view arg, const Values& values, int value) {
  if (!one_of(values, value)) {
    fail(op, arg, "be one of " + join(values) + " in mode \"affine\"", std::to_string(value));
  }
}

}  // namespace

void fail(std::string_view op, std::string_view arg, std::string_view rule,
          std::string_view value) {
  std::ostringstream message;
  message << "[" << op << "] " << arg << " must " << rule << ", got " << value << ".";
  throw std::invalid_argument(message.str());
}

std::string to_string(const mx::Shape& shape) {
  std::string out = "(" + join(shape);
  return out + (shape.size() == 1 ? ",)" : ")");
}

std::string to_string(mx::Dtype dtype) {
  std::ostringstream out;
  out << dtype;
  return out.str();
}

// 1e-46 is not the zero that std::to_string makes of it.
std::string number(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

std::optional<FloatType> float_type(mx::Dtype dtype) {
  if (dtype == mx::float32) return FloatType::kFloat32;
  if (dtype == mx::float16) return FloatType::kFloat16;
  if (dtype == mx::bfloat16) return FloatType::kBFloat16;
  return std::nullopt;
}

Format check_format(std::string_view op, const std::string& mode, std::optional<int> group_size,
                    std::optional<int> bits) {
  if (!one_of(kModes, mode)) {
    fail(op, "mode", "be one of " + join(kModes), "\"" + mode + "\"");
  }
  Format format{mode, group_size.value_or(kAffineDefaultGroupSize),
                bits.value_or(kAffineDefaultBits)};
  if (format.affine()) {
    check_one_of(op, "group_size", kAffineGroupSizes, format.group_size);
    check_one_of(op, "bits", kAffineBits, format.bits);
  } else {
    // MLX divides by them unchecked.
    if (group_size && *group_size < 1)
      fail(op, "group_size", "be positive", std::to_string(*group_size));
    if (bits && *bits < 1) fail(op, "bits", "be positive", std::to_string(*bits));
  }
  return format;
}

int check_affine_operands(std::string_view op, const mx::array& w, const mx::array& scales,
                          const std::optional<mx::array>& biases, const Format& format) {
  if (w.dtype() != mx::uint32) fail(op, "w", "have dtype uint32", to_string(w.dtype()));
  if (w.ndim() < 2) fail(op, "w", "have at least 2 dimensions", "shape " + to_string(w.shape()));
  if (!biases) fail(op, "biases", "be given in mode \"affine\"", "None");
  if (scales.shape() != biases->shape()) {
    fail(op, "biases", "have the shape of scales " + to_string(scales.shape()),
         to_string(biases->shape()));
  }
  for (auto dtype : {scales.dtype(), biases->dtype()}) {
    if (dtype == mx::complex64) fail(op, "scales and biases", "be real", to_string(dtype));
  }
  int64_t n_bits = int64_t{32} * w.shape(-1);
  auto expected = w.shape();
  expected.back() = static_cast<int>(n_bits / (int64_t{format.bits} * format.group_size));
  // Kernels decode 32 values at a time.
  int whole = std::max(format.group_size, 32);
  if (n_bits % (int64_t{format.bits} * whole) != 0) {
    fail(op, "w",
         "have a last dimension of whole groups (" + std::to_string(whole) + " values of " +
             std::to_string(format.bits) + " bits)",
         "shape " + to_string(w.shape()));
  }
  if (scales.shape() != expected) {
    fail(op, "scales",
         "have the shape " + to_string(expected) + " that w, bits and group_size imply",
         to_string(scales.shape()));
  }
  int64_t n_values = int64_t{expected.back()} * format.group_size;
  if (n_values > std::numeric_limits<int>::max()) {
    fail(op, "w", "decode to fewer than 2^31 columns", std::to_string(n_values));
  }
  return static_cast<int>(n_values);
}

bool check_precision(std::string_view op, const std::optional<std::string>& precision) {
  if (precision && *precision != "tf32") {
    fail(op, "precision", "be None or \"tf32\"", "\"" + *precision + "\"");
  }
  return precision.has_value();
}

void check_same_groups(std::string_view op, const mx::array& w, const mx::array& scales,
                       const mx::array& biases, int group_size, int bits) {
  int64_t n_bits = int64_t{32} * w.shape(-1);
  bool same = n_bits == int64_t{scales.shape(-1)} * group_size * bits &&
              scales.shape(-1) == biases.shape(-1);
  if (scales.ndim() > 1 && biases.ndim() > 1) {
    same = same && w.shape(-2) == scales.shape(-2) && w.shape(-2) == biases.shape(-2);
  }
  if (!same) {
    fail(op, "scales and biases", "have one value a group of w " + to_string(w.shape()),
         to_string(scales.shape()) + " and " + to_string(biases.shape()));
  }
}

void check_other_mode(std::string_view op, const mx::array& w, const mx::array& scales) {
  if (w.ndim() < 2) fail(op, "w", "have at least 2 dimensions", "shape " + to_string(w.shape()));
  auto rows = [](const mx::array& a) { return mx::Shape(a.shape().begin(), a.shape().end() - 1); };
  if (scales.ndim() != w.ndim() || rows(scales) != rows(w)) {
    fail(op, "scales", "have the rows of w " + to_string(w.shape()),
         "shape " + to_string(scales.shape()));
  }
}

std::string unsupported(std::string_view backend, const Format& format, const NamedDtypes& dtypes) {
  if (backend != "cpu" && backend != "metal")
    return "no kernel for backend " + std::string(backend);
  if (!format.affine()) return "mode " + format.mode;
  if (!one_of(kAffineBits, format.bits)) return "bits " + std::to_string(format.bits);
  if (!one_of(kAffineGroupSizes, format.group_size)) {
    return "group_size " + std::to_string(format.group_size);
  }
  for (const auto& [name, dtype] : dtypes) {
    if (!float_type(dtype)) return name + " of dtype " + to_string(dtype);
  }
  return "";
}

}  // namespace mto
