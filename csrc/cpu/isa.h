#pragma once

#include <string>
#include <vector>

namespace mto {

enum class Isa { kScalar, kAvx2, kAvx512, kNeon };

// The instruction sets that this build has kernels for and this processor can run, best last.
const std::vector<Isa>& available_isas();
Isa current_isa();
// False, and nothing changes, when `isa` is not available.
bool set_current_isa(Isa isa);
const char* isa_name(Isa isa);
// Whether code for AVX-512 may also use AMX tiles of bfloat16 and the conversion to it.
bool has_bf16_tiles();
// The same of AMX tiles of bytes, and AVX-512 VBMI and VNNI.
bool has_int8_tiles();

}  // namespace mto

// MTO_DECLARE_KERNELS(Type, name): the table `name` of kernel pointers in the namespace of every
// instruction set of this build, and mto::name() that picks the current one.
#if defined(__x86_64__) || defined(_M_X64)
#define MTO_DECLARE_KERNELS(Type, name)                   \
  namespace scalar {                                      \
  extern const Type name;                                 \
  }                                                       \
  namespace avx2 {                                        \
  extern const Type name;                                 \
  }                                                       \
  namespace avx512 {                                      \
  extern const Type name;                                 \
  }                                                       \
  inline const Type& name(Isa isa) {                      \
    if (isa == Isa::kAvx512) return avx512::name;         \
    return isa == Isa::kAvx2 ? avx2::name : scalar::name; \
  }
#elif defined(__aarch64__)
#define MTO_DECLARE_KERNELS(Type, name) \
  namespace scalar {                    \
  extern const Type name;               \
  }                                     \
  namespace neon {                      \
  extern const Type name;               \
  }                                     \
  inline const Type& name(Isa isa) { return isa == Isa::kNeon ? neon::name : scalar::name; }
#else
#define MTO_DECLARE_KERNELS(Type, name) \
  namespace scalar {                    \
  extern const Type name;               \
  }                                     \
  inline const Type& name(Isa) { return scalar::name; }
#endif
