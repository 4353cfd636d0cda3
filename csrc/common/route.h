#pragma once

#include "common/check.h"
#include "metal/encoder.h"

namespace mto {

// A call, as far as it decides whether our kernel or MLX's op runs it.
struct Call {
  std::string_view op;
  mx::Stream stream;
  Format format;
  NamedDtypes dtypes;
  std::optional<std::string> route;  // "ours", "mlx", "auto" (None)
  bool force_fused;
};

// The same for an op that knows itself what its kernels cover.
struct Choice {
  std::string_view op;
  mx::Stream stream;
  std::string unsupported;  // why no kernel of ours covers the call; empty where one does
  bool mlx_has_kernel;
  std::optional<std::string> route;
  bool force_fused;
};

// True where our kernel runs the call. Else MLX's op has to, which is recorded, or refused where
// the caller forbids it.
//
// "auto" is ours on a CPU. On a Mac it is MLX's for what MLX has a kernel for: until a measurement
// on that Mac says otherwise, Apple's kernels are the safer choice.
bool takes_call(const Call& call);
bool takes_call(const Choice& choice);

// "cpu", "metal" or "gpu". Streams of the CPU are "metal" while the emulator runs their kernels.
std::string backend_of(mx::Stream stream);

// Inputs as the kernels of the stream's backend read them: row-contiguous for Metal.
std::vector<mx::array> kernel_inputs(std::vector<mx::array> inputs, mx::Stream stream);

// Runs the op's Metal kernels in the emulator while that is on; false where it is off.
bool eval_emulated(metal::MetalPrimitive& primitive, mx::Stream stream,
                   const std::vector<mx::array>& inputs, std::vector<mx::array> outputs);

}  // namespace mto
