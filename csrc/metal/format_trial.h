#pragma once

// Packed matrices to try out kernels with: finite values, so that a product with rows of one value
// has one right result.

#include "common/format_call.h"
#include "metal/trial.h"

namespace mto::metal {

// Shapes of the packed arrays of a matrix of about rows x cols, as many as `packed` has.
TrialShapes trial_packed_shapes(const FormatCall& call, const std::vector<mx::array>& packed,
                                int rows, int cols);
std::vector<mx::array> trial_packed(const FormatCall& call, const std::vector<mx::array>& packed,
                                    const TrialShapes& shapes);

}  // namespace mto::metal
