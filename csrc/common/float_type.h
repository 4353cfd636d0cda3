#pragma once

#include <cstddef>
#include <cstdint>

namespace mto {

// The floating types that kernels read and write. Kernels know no MLX type.
enum class FloatType : int32_t { kFloat32, kFloat16, kBFloat16 };

constexpr size_t size_of(FloatType type) { return type == FloatType::kFloat32 ? 4 : 2; }

}  // namespace mto
