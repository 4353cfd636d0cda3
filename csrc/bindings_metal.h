#pragma once

#include <nanobind/nanobind.h>

// What mlx_tensorops.testing and mlx_tensorops.metal_source ask of the Metal backend.
void bind_metal(nanobind::module_& m);
