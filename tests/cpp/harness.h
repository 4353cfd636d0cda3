#pragma once

// What the kernel tests share: counted checks, seeded numbers, and buffers that end at an unmapped
// page, so that reading or writing one byte too far stops the test.

#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>

#include "common/float_type.h"

namespace test {

inline int n_checks = 0;
inline int n_failures = 0;

inline void check(bool ok, const std::string& what) {
  ++n_checks;
  if (!ok && ++n_failures <= 20) std::printf("FAILED: %s\n", what.c_str());
}

inline int finish(const char* name) {
  std::printf("%s: %d passed, %d failed\n", name, n_checks - n_failures, n_failures);
  return n_failures != 0;
}

class Guarded {
 public:
  explicit Guarded(size_t n_bytes) : n_bytes_(n_bytes) {
    size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    mapped_ = (n_bytes + page - 1) / page * page + 2 * page;
    base_ = static_cast<char*>(
        mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + mapped_ - page, page, PROT_NONE) != 0) std::abort();
    data_ = base_ + mapped_ - page - n_bytes;
    std::memset(base_, kBefore, data_ - base_);
  }
  ~Guarded() { munmap(base_, mapped_); }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;

  template <typename T = char>
  T* data() const {
    return reinterpret_cast<T*>(data_);
  }
  size_t n_bytes() const { return n_bytes_; }
  // Whether the bytes before the buffer are as they were.
  bool intact() const {
    for (const char* p = base_; p < data_; ++p) {
      if (*p != kBefore) return false;
    }
    return true;
  }

 private:
  static constexpr char kBefore = 0x5a;
  size_t n_bytes_, mapped_;
  char* base_;
  char* data_;
};

inline std::mt19937& rng() {
  static std::mt19937 engine(20240717);
  return engine;
}

inline float uniform(float low, float high) {
  return std::uniform_real_distribution<float>(low, high)(rng());
}

inline void fill_bytes(Guarded& buffer) {
  for (size_t i = 0; i < buffer.n_bytes(); ++i)
    buffer.data<uint8_t>()[i] = static_cast<uint8_t>(rng()());
}

inline const char* name_of(mto::FloatType type) {
  return type == mto::FloatType::kFloat32   ? "f32"
         : type == mto::FloatType::kFloat16 ? "f16"
                                            : "bf16";
}

// The value of a half, by its definition: slow and independent of the code under test.
inline double half_value(mto::FloatType type, uint16_t h) {
  int n_mantissa = type == mto::FloatType::kFloat16 ? 10 : 7;
  int exponent_mask = (1 << (15 - n_mantissa)) - 1, bias = exponent_mask / 2;
  int exponent = (h >> n_mantissa) & exponent_mask, mantissa = h & ((1 << n_mantissa) - 1);
  double sign = h & 0x8000 ? -1.0 : 1.0;
  if (exponent == exponent_mask) return mantissa ? NAN : sign * INFINITY;
  if (exponent == 0) return sign * std::ldexp(mantissa, 1 - bias - n_mantissa);
  return sign * std::ldexp((1 << n_mantissa) + mantissa, exponent - bias - n_mantissa);
}

inline double read(mto::FloatType type, const void* base, int64_t index) {
  if (type == mto::FloatType::kFloat32) return static_cast<const float*>(base)[index];
  return half_value(type, static_cast<const uint16_t*>(base)[index]);
}

// Fills with numbers that every type holds exactly, so that references need no rounding of inputs.
inline void fill_exact(Guarded& buffer, mto::FloatType type, float low, float high) {
  size_t n = buffer.n_bytes() / mto::size_of(type);
  for (size_t i = 0; i < n; ++i) {
    float value = uniform(low, high);
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    bits &= 0xffff0000u;  // a bfloat16
    if (type == mto::FloatType::kFloat32) {
      std::memcpy(buffer.data<float>() + i, &bits, 4);
    } else if (type == mto::FloatType::kBFloat16) {
      buffer.data<uint16_t>()[i] = static_cast<uint16_t>(bits >> 16);
    } else {
      uint32_t magnitude = bits & 0x7fffffffu;
      uint32_t half = magnitude < 0x38800000u ? 0 : (magnitude - 0x38000000u) >> 13;
      buffer.data<uint16_t>()[i] = static_cast<uint16_t>((bits >> 16 & 0x8000u) | half);
    }
  }
}

// Code k of a stream of `bits` bits, least significant first.
inline uint32_t code_at(const uint8_t* stream, int64_t k, int bits) {
  uint32_t code = 0;
  for (int b = 0; b < bits; ++b) {
    int64_t bit = k * bits + b;
    code |= static_cast<uint32_t>(stream[bit / 8] >> (bit % 8) & 1) << b;
  }
  return code;
}

}  // namespace test
