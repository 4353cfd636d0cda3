#include "common/format_call.h"

#include <algorithm>
#include <limits>
#include <map>
#include <mutex>

#include "common/integers.h"
#include "common/route.h"
#include "common/transforms.h"
#include "formats/affine.h"

namespace mto {
namespace {

constexpr int kAffineGroups[] = {16, 32, 64, 128, 256};

// One table a format and number of bits, kept for good.
const Levels& levels_for(const FormatCall& call) {
  static auto* all = new std::map<std::pair<const FormatRow*, int>, Levels>;
  static std::mutex mutex;
  std::lock_guard lock(mutex);
  std::pair key{call.row, call.bits};
  auto found = all->find(key);
  if (found == all->end()) found = all->emplace(key, levels_of(*call.row, call.bits)).first;
  return found->second;
}

std::string in_mode(const FormatCall& call) {
  return " in mode \"" + std::string(call.row->name) + "\"";
}

const FormatRow& find_row(std::string_view op, const std::string& mode) {
  std::string known;
  for (const auto* row : all_formats()) {
    if (mode == row->name) return *row;
    known += (known.empty() ? "" : ", ") + std::string(row->name);
  }
  fail(op, "mode", "be one of " + known, "\"" + mode + "\"");
}

std::string text(const GroupSize& size) {
  if (const auto* one = std::get_if<int>(&size)) return std::to_string(*one);
  auto [rows, cols] = std::get<1>(size);
  return "(" + std::to_string(rows) + ", " + std::to_string(cols) + ")";
}

int check_affine_bits(std::string_view op, int bits) {
  for (int one : kAffineBits) {
    if (bits == one) return bits;
  }
  fail(op, "bits", "be one of 1, 2, 3, 4, 5, 6, 8 in mode \"affine\"", std::to_string(bits));
}

// Which groups a mode allows, in words; empty where `rows` x `cols` is one of them.
std::string wrong_group(const FormatRow& row, int rows, int cols) {
  bool one_row = rows == 1;
  if (row.third == Third::kBiases) {
    bool fits = std::find(std::begin(kAffineGroups), std::end(kAffineGroups), cols) !=
                std::end(kAffineGroups);
    return one_row && fits ? "" : "be one of 16, 32, 64, 128, 256";
  }
  if (row.group_rows > 1) return rows > 0 && cols > 0 ? "" : "be a pair of positive numbers";
  if (row.layout == Layout::kHighFirst) {
    return one_row && cols > 0 && cols % 32 == 0 ? "" : "be a multiple of 32";
  }
  bool same = rows == row.group_rows && cols == row.group_cols;
  if (row.group_cols == kWholeAxis) return same ? "" : "be None";
  return same ? "" : "be " + std::to_string(row.group_cols);
}

void check_dtype(std::string_view op, const FormatCall& call, const mx::array& w) {
  auto dtype = call.row->words ? mx::uint32 : mx::uint8;
  if (w.dtype() != dtype) {
    fail(op, "w", "have dtype " + to_string(dtype) + in_mode(call), to_string(w.dtype()));
  }
  if (w.ndim() < 2) fail(op, "w", "have at least 2 dimensions", "shape " + to_string(w.shape()));
}

// Values of a row that have to be whole: a block, or a group of its own scale.
int whole_values(const FormatCall& call) {
  if (call.row->layout == Layout::kQuarters || call.row->block < 16) return 1;
  return std::max(call.row->block, call.group_cols);
}

void check_columns(std::string_view op, const FormatCall& call, const mx::array& w) {
  const auto& row = *call.row;
  int64_t n_bytes = int64_t{w.shape(-1)} * w.itemsize(), whole = whole_values(call);
  int64_t whole_bits = row.bits ? whole * call.bits : int64_t{row.block_bytes} * 8;
  if (row.layout != Layout::kQuarters && n_bytes * 8 % whole_bits != 0) {
    auto bytes = whole_bits % 8 == 0 ? std::to_string(whole_bits / 8) + " bytes"
                                     : std::to_string(whole_bits) + " bits";
    fail(op, "w",
         "have a last dimension of whole blocks of " + std::to_string(whole) + " values in " +
             bytes + in_mode(call),
         "shape " + to_string(w.shape()));
  }
  int64_t n_values = row.layout == Layout::kQuarters ? n_bytes
                     : row.bits                      ? n_bytes * 8 / call.bits
                                                     : n_bytes / row.block_bytes * row.block;
  if (n_values > std::numeric_limits<int>::max()) {
    fail(op, "w", "decode to fewer than 2^31 columns", std::to_string(n_values));
  }
}

// [.., rows, columns] of scales.
mx::Shape scales_shape(const FormatCall& call, const mx::array& w) {
  auto [rows, cols] = decoded_shape(call, w);
  mx::Shape shape(w.shape().begin(), w.shape().end() - 2);
  shape.push_back(n_groups(rows, call.group_rows));
  shape.push_back(n_groups(cols, call.group_cols));
  return shape;
}

mx::array one_number(std::string_view op, const char* name, const FormatCall& call,
                     const mx::array& a, mx::Stream s) {
  if (a.size() != 1)
    fail(op, name, "be one number" + in_mode(call), "shape " + to_string(a.shape()));
  return mx::reshape(a, {1, 1}, s);
}

// One number, or one for each matrix: [.., 1, 1].
mx::array one_a_matrix(std::string_view op, const FormatCall& call, const mx::array& w,
                       const mx::array& scales, mx::Stream s) {
  mx::Shape batch(w.shape().begin(), w.shape().end() - 2);
  if (scales.size() == 1 || scales.shape() != batch) {
    return one_number(op, "scales", call, scales, s);
  }
  return mx::expand_dims(scales, {-2, -1}, s);
}

mx::array check_scales(std::string_view op, const FormatCall& call, const mx::array& w,
                       const std::optional<mx::array>& scales, mx::Stream s) {
  if (!scales) fail(op, "scales", "be given" + in_mode(call), "None");
  bool coded = call.row->scales != Scales::kFloat;
  if (!mx::issubdtype(scales->dtype(), mx::floating) && !(coded && scales->dtype() == mx::uint8)) {
    fail(op, "scales",
         (coded ? "have dtype uint8 or a floating one" : "have a floating dtype") + in_mode(call),
         to_string(scales->dtype()));
  }
  if (call.group_rows == kWholeAxis) return one_a_matrix(op, call, w, *scales, s);
  if (call.group_cols == kWholeAxis && scales->size() == 1) return mx::reshape(*scales, {1, 1}, s);
  auto expected = scales_shape(call, w);
  if (call.group_cols == kWholeAxis) expected.pop_back();
  if (scales->shape() != expected) {
    fail(op, "scales",
         "have the shape " + to_string(expected) + " that w " + to_string(w.shape()) + " implies" +
             in_mode(call),
         to_string(scales->shape()));
  }
  return call.group_cols == kWholeAxis ? mx::expand_dims(*scales, -1, s) : *scales;
}

}  // namespace

FormatCall check_format_call(std::string_view op, const std::string& mode,
                             const std::optional<GroupSize>& group_size, std::optional<int> bits) {
  const auto& row = find_row(op, mode);
  FormatCall call{&row, bits.value_or(row.bits), row.group_rows, row.group_cols};
  if (call.affine()) check_affine_bits(op, call.bits);
  if (row.scales == Scales::kInside && bits) {
    fail(op, "bits", "be None" + in_mode(call), std::to_string(*bits));
  }
  if (!call.affine() && call.bits != row.bits) {
    fail(op, "bits", "be " + std::to_string(row.bits) + in_mode(call), std::to_string(call.bits));
  }
  if (group_size) {
    const auto* one = std::get_if<int>(&*group_size);
    auto [rows, cols] = one ? std::pair{1, *one} : std::get<1>(*group_size);
    auto rule = wrong_group(row, rows, cols);
    if (!rule.empty()) fail(op, "group_size", rule + in_mode(call), text(*group_size));
    call.group_rows = rows;
    call.group_cols = cols;
  }
  return call;
}

int n_groups(int n, int group) {
  return group == kWholeAxis ? 1 : static_cast<int>(ceil_div(n, group));
}

std::pair<int, int> decoded_shape(const FormatCall& call, const mx::array& w) {
  const auto& row = *call.row;
  int64_t n_bytes = int64_t{w.shape(-1)} * w.itemsize();
  if (row.layout == Layout::kQuarters) return {4 * w.shape(-2), w.shape(-1)};
  int64_t cols = row.bits ? n_bytes * 8 / call.bits : n_bytes / row.block_bytes * row.block;
  return {w.shape(-2), static_cast<int>(cols)};
}

std::vector<mx::array> check_packed(std::string_view op, const FormatCall& call, const mx::array& w,
                                    const std::optional<mx::array>& scales,
                                    const std::optional<mx::array>& biases,
                                    const std::optional<mx::array>& global_scale, mx::Stream s) {
  if (call.affine()) {
    if (!scales) fail(op, "scales", "be given" + in_mode(call), "None");
    check_affine_operands(op, w, *scales, biases, {call.row->name, call.group_cols, call.bits});
    if (global_scale) fail(op, "global_scale", "be None" + in_mode(call), "an array");
    return {w, *scales, *biases};
  }
  check_dtype(op, call, w);
  check_columns(op, call, w);
  std::vector<mx::array> packed{w};
  if (call.row->scales == Scales::kInside) {
    if (scales) fail(op, "scales", "be None" + in_mode(call), "an array");
  } else {
    packed.push_back(check_scales(op, call, w, scales, s));
  }
  if (biases) fail(op, "biases", "be None" + in_mode(call), "an array");
  if (global_scale) {
    if (call.row->third != Third::kGlobalScale) {
      fail(op, "global_scale", "be None" + in_mode(call), "an array");
    }
    auto scale = one_number(op, "global_scale", call, *global_scale, s);
    packed.push_back(mx::astype(scale, mx::float32, s));
  }
  return packed;
}

mx::Shape check_same_packed(std::string_view op, const FormatCall& call,
                            const std::vector<mx::array>& packed) {
  mx::Shape batch(packed[0].shape().begin(), packed[0].shape().end() - 2);
  for (size_t i = 1; i < packed.size(); ++i) {
    auto shape = packed[i].shape();
    bool of_all =
        call.group_cols == kWholeAxis || (i == 2 && call.row->third == Third::kGlobalScale);
    bool one = of_all && shape.end()[-1] == 1 && shape.end()[-2] == 1;
    auto expected = scales_shape(call, packed[0]);
    if (!one && !std::equal(shape.end() - 2, shape.end(), expected.end() - 2)) {
      fail(op, "scales", "have one value a group of w " + to_string(packed[0].shape()),
           to_string(shape));
    }
    batch = mx::broadcast_shapes(batch, {shape.begin(), shape.end() - 2});
  }
  return batch;
}

bool has_affine_kernels(const FormatCall& call) {
  const auto& sizes = kAffineGroupSizes;
  return call.affine() &&
         std::find(std::begin(sizes), std::end(sizes), call.group_cols) != std::end(sizes);
}

bool can_be_verified(const FormatCall& call) { return unsupported("cpu", call, {}).empty(); }

bool known_to_mlx(const FormatCall& call) {
  std::string_view mode = call.row->name;
  return has_affine_kernels(call) || mode == "mxfp4" || mode == "mxfp8" || mode == "nvfp4";
}

void check_known_to_mlx(std::string_view op, const FormatCall& call) {
  if (known_to_mlx(call)) return;
  std::string reason = last_reason();
  if (call.affine())
    fail(op, "group_size", "be one of 32, 64, 128 for MLX's op",
         std::to_string(call.group_cols) + " (" + reason + ")");
  fail(op, "mode", "be one of affine, mxfp4, mxfp8, nvfp4 for MLX's op",
       "\"" + std::string(call.row->name) + "\" (" + reason + ")");
}

std::string unsupported(std::string_view backend, const FormatCall& call,
                        const NamedDtypes& dtypes) {
  if (backend != "cpu" && backend != "metal") {
    return "no kernel for backend " + std::string(backend);
  }
  const auto& row = *call.row;
  bool user = row.layout == Layout::kBlocks && !row.level && row.metal;
  if (user && backend == "cpu" && !row.decode_block) {
    return "no decode_cpp of mode " + std::string(row.name);
  }
  if (user && backend == "metal" && !*row.metal) {
    return "no decode_metal of mode " + std::string(row.name);
  }
  for (const auto& [name, dtype] : dtypes) {
    if (!float_type(dtype)) return name + " of dtype " + to_string(dtype);
  }
  return "";
}

mx::Dtype default_dtype(const FormatCall& call, const std::vector<mx::array>& packed) {
  if (packed.size() == 1) return mx::float32;
  if (call.affine()) return mx::result_type(packed[1], packed[2]);
  return packed[1].dtype() == mx::uint8 ? mx::bfloat16 : packed[1].dtype();
}

NamedDtypes packed_dtypes(const FormatCall& call, const std::vector<mx::array>& packed) {
  NamedDtypes dtypes;
  if (packed.size() > 1 && packed[1].dtype() != mx::uint8) {
    dtypes.push_back({"scales", packed[1].dtype()});
  }
  if (call.affine()) dtypes.push_back({"biases", packed[2].dtype()});
  return dtypes;
}

PackedMatrix packed_matrix(const FormatCall& call, const std::vector<mx::array>& packed) {
  PackedMatrix m;
  const auto& w = packed[0];
  std::tie(m.n_rows, m.n_cols) = decoded_shape(call, w);
  m.row_bytes = int64_t{w.shape(-1)} * w.itemsize();
  m.bits = call.bits;
  m.levels = &levels_for(call);
  m.layout = call.row->layout;
  m.block = call.row->block;
  m.block_bytes = call.row->block_bytes;
  m.decode_block = call.row->decode_block;
  m.group_rows = call.group_rows == kWholeAxis ? std::max<int64_t>(1, m.n_rows) : call.group_rows;
  m.group_cols = call.group_cols == kWholeAxis ? std::max<int64_t>(1, m.n_cols) : call.group_cols;
  auto type_of = [&](const mx::array& a) {
    if (auto type = float_type(a.dtype())) return static_cast<ScaleType>(*type);
    return call.row->scales == Scales::kE4M3 ? ScaleType::kE4M3 : ScaleType::kE8M0;
  };
  if (packed.size() > 1) {
    m.scale_type = type_of(packed[1]);
    m.scales_stride = packed[1].shape(-1);
    // One number for the whole matrix.
    if (packed[1].shape(-2) == 1) m.group_rows = std::max<int64_t>(1, m.n_rows);
  }
  if (packed.size() > 2 && call.affine()) m.bias_type = type_of(packed[2]);
  return m;
}

mx::array group_sums(const FormatCall& call, const mx::array& matrix, mx::Stream s) {
  auto sums = matrix;
  // What is padded, and rows that are split, keep the numbers of the first call.
  bool fixed =
      call.group_rows > 1 || (call.group_cols > 1 && matrix.shape(-1) % call.group_cols != 0);
  if (fixed) sums = of_fixed_shape("dequantize", sums, s);
  auto reduce = [&](int axis, int group) {
    if (group == 1) return;
    if (group == kWholeAxis) {
      sums = mx::sum(sums, axis, true, s);
      return;
    }
    int at = axis + static_cast<int>(sums.ndim());
    int missing = (group - sums.shape(at) % group) % group;
    if (missing) {
      auto shape = sums.shape();
      shape[at] = missing;
      sums = mx::concatenate({sums, mx::zeros(shape, sums.dtype(), s)}, at, s);
    }
    sums = mx::unflatten(sums, at, {sums.shape(axis) / group, group}, s);
    sums = mx::sum(sums, at + 1, false, s);
  };
  reduce(-1, call.group_cols);
  reduce(-2, call.group_rows);
  return sums;
}

void refuse_codes(std::string_view op, const std::vector<mx::array>& inputs, int first,
                  const std::vector<int>& argnums) {
  for (int arg : argnums) {
    if (arg < first || mx::issubdtype(inputs[arg].dtype(), mx::floating)) continue;
    fail(op, arg == first ? "the packed w" : "scales of dtype uint8", "not be differentiated",
         "it among the differentiated arguments");
  }
}

}  // namespace mto
