#pragma once

// What a call says about its packed matrix: checked, and in the one form that primitives take.

#include <variant>

#include "common/check.h"
#include "formats/packed_matrix.h"

namespace mto {

// Values that share a scale: along a row, or (of a column, of a row).
using GroupSize = std::variant<int, std::pair<int, int>>;

struct FormatCall {
  const FormatRow* row;
  int bits;
  int group_rows, group_cols;  // or kWholeAxis

  bool operator==(const FormatCall&) const = default;
  bool affine() const { return row->third == Third::kBiases; }
};

// The rows of the table and those that users have registered.
std::vector<const FormatRow*> all_formats();
// Adds a format of blocks.
void register_format(const std::string& name, int block, int block_bytes, uintptr_t decode_block,
                     const std::string& metal);

FormatCall check_format_call(std::string_view op, const std::string& mode,
                             const std::optional<GroupSize>& group_size, std::optional<int> bits);

// Of n rows or columns; `group` of them have one, or all where it is kWholeAxis.
int n_groups(int n, int group);

// Of the matrix that w decodes to, the last two dimensions.
std::pair<int, int> decoded_shape(const FormatCall& call, const mx::array& w);

// The arrays of a call as inputs of a primitive: w; scales [.., rows, columns]; biases or the
// global scale. All have at least 2 dimensions.
std::vector<mx::array> check_packed(std::string_view op, const FormatCall& call, const mx::array& w,
                                    const std::optional<mx::array>& scales,
                                    const std::optional<mx::array>& biases,
                                    const std::optional<mx::array>& global_scale, mx::Stream s);

// That the inputs agree, for output_shapes; see check_same_groups. Returns the leading dimensions
// of all of them, broadcast.
mx::Shape check_same_packed(std::string_view op, const FormatCall& call,
                            const std::vector<mx::array>& packed);

// Whether Metal kernels can be compared with the CPU's: a user's format may have none there.
bool can_be_verified(const FormatCall& call);

// Whether MLX has the format, and ValueError where it does not.
bool known_to_mlx(const FormatCall& call);
void check_known_to_mlx(std::string_view op, const FormatCall& call);
// Whether the kernels of the affine format have the group size. Others are decoded as any format.
bool has_affine_kernels(const FormatCall& call);

// See check.h.
std::string unsupported(std::string_view backend, const FormatCall& call,
                        const NamedDtypes& dtypes);

// The dtype of decoded values where none is asked for.
mx::Dtype default_dtype(const FormatCall& call, const std::vector<mx::array>& packed);
// Those of scales and biases that are floats.
NamedDtypes packed_dtypes(const FormatCall& call, const std::vector<mx::array>& packed);

// All but the pointers.
PackedMatrix packed_matrix(const FormatCall& call, const std::vector<mx::array>& packed);

// Sums of a matrix [.., rows, columns] over its groups: [.., scales' rows, scales' columns].
mx::array group_sums(const FormatCall& call, const mx::array& matrix, mx::Stream s);

// Refuses to differentiate with respect to codes and to scales that are codes.
void refuse_codes(std::string_view op, const std::vector<mx::array>& inputs, int first,
                  const std::vector<int>& argnums);

}  // namespace mto
