#pragma once

#include <metal_cooperative_tensor>
#include <metal_stdlib>
#include <metal_tensor>

// Apple's headers vanish below Metal 4.
#if __METAL_VERSION__ >= 400
#include "emulator/tensor_ops/matmul2d.h"
#include "emulator/tensor_ops/reductions.h"
#endif
