#pragma once

// One run of an op's Metal kernels next to its CPU kernels.

#include <string>

#include "metal/encoder.h"

namespace mto::metal {

// The outputs of the op for other inputs, on another stream; lazy.
std::vector<mx::array> outputs_of(const mx::array& a, const std::vector<mx::array>& inputs,
                                  mx::Stream stream);

// Runs the op of a lazy array `a` on `inputs` by its Metal kernels and by its CPU kernels. Says
// what differs, empty where every bit is equal. Throws what the device, or its compiler, throws.
std::string run_trial(const mx::array& a, const std::vector<mx::array>& inputs);

// Values for trial_inputs(), the same in every process; the program's random numbers stay as they
// are.
mx::array trial_words(const mx::Shape& shape, uint64_t seed);
mx::array trial_normal(const mx::Shape& shape, mx::Dtype dtype, uint64_t seed);
// low <= value <= high
mx::array trial_integers(int low, int high, const mx::Shape& shape, mx::Dtype dtype, uint64_t seed);
// Where the arrays of trials are made.
mx::Stream trial_stream();

}  // namespace mto::metal
