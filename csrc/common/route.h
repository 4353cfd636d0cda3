#pragma once

#include "common/format_call.h"
#include "metal/encoder.h"

namespace mto {

// Whose kernels run the ops of a stream, "cpu", "metal" or "gpu" (streams of the CPU are "metal"
// while the emulator runs their kernels), and why none of ours can there, empty where they can.
struct Place {
  std::string backend;
  std::string unfit;
};
Place place_of(mx::Stream stream);

// What a call is that an op's kernels may cover, and MLX's.
struct Coverage {
  std::string unsupported;  // why no kernel of ours covers it; empty where one does
  bool mlx_has_kernel;
};
Coverage coverage_of(const Place& place, const Format& format, const NamedDtypes& dtypes);
Coverage coverage_of(const Place& place, const FormatCall& call, const NamedDtypes& dtypes);

// Why MLX's op has to run a call, empty where our kernel does. `chosen`: the caller insists on
// ours.
std::string reason_against(const Place& place, const Coverage& coverage, std::string_view route,
                           bool chosen);

// Throws where there is no such route.
void check_route(std::string_view op, std::string_view route);

// A call, as far as it decides whether our kernel or MLX's op runs it.
struct Call {
  std::string_view op;
  Place place;
  Coverage coverage;
  std::optional<std::string> route;  // "ours", "mlx", "auto" (None)
  bool force_fused;
};

// True where our kernel runs the call. Else MLX's op has to, which is recorded, or refused where
// the caller forbids it.
//
// "auto" is ours on a CPU. On a Mac it is MLX's for what MLX has a kernel for: until a measurement
// on that Mac says otherwise, Apple's kernels are the safer choice.
bool takes_call(const Call& call);

// Whether the lazy array of one of our ops may be evaluated: not where its Metal kernels were found
// wrong. Then MLX's op has to run, which is recorded, or refused where the caller forbids it.
bool may_run(std::string_view op, const mx::array& a, bool force_fused);

// What sent the last call of this thread to MLX's op; empty where our kernel took it.
const std::string& last_reason();

// Inputs as the kernels of the stream's backend read them: row-contiguous for Metal.
std::vector<mx::array> kernel_inputs(std::vector<mx::array> inputs, mx::Stream stream);

// Runs the op's Metal kernels in the emulator while that is on; false where it is off.
bool eval_emulated(metal::MetalPrimitive& primitive, mx::Stream stream,
                   const std::vector<mx::array>& inputs, std::vector<mx::array> outputs);

}  // namespace mto
