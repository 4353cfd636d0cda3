#pragma once

#include <nanobind/nanobind.h>

#include "common/check.h"

namespace mto {

using Callee = nanobind::typed<nanobind::callable, void(nanobind::any, nanobind::any)>;

// Arrays that a Python function computes when the graph is evaluated: `run(inputs, outputs)` with
// a list of (memory, first, strides) for the inputs and of memory for the outputs. Memory is a
// memoryview of bytes, valid during the call; `first` is the index in it, in elements, of the
// array's first element, `strides` are in elements.
//
// The function runs in the thread that evaluates, once the inputs are there. What it raises is
// raised by the evaluation (mx.eval, or whatever read an array), and the outputs stay without a
// value: evaluating them again calls the function again. So no exception is in a task of a stream,
// and the interpreter lock is taken by a thread that has just released it.
std::vector<mx::array> callback(const std::string& name, Callee run,
                                const std::vector<mx::array>& inputs,
                                const std::vector<std::vector<int>>& shapes,
                                const std::vector<mx::Dtype>& dtypes, mx::StreamOrDevice s);

}  // namespace mto
