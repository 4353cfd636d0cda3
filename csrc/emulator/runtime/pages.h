#pragma once

#include <cstddef>
#include <cstdint>

namespace emu {

// What memory holds that the kernel has not written: NaN in every floating type, so that a read of
// it shows in the results.
constexpr unsigned char kPoison = 0xFF;

// Inaccessible memory next to a stack or a threadgroup variable. More than a page, because a wrong
// index, or a function with large local arrays, may skip the first one.
constexpr size_t kGuardBytes = 64 * 1024;

size_t page_bytes();

constexpr size_t round_up(size_t n, size_t unit) { return (n + unit - 1) / unit * unit; }

// Address space without access; null: refused.
char* reserve(size_t bytes);
bool allow_access(char* pages, size_t bytes);

// Where this library was loaded: the difference between addresses and those in its file.
uintptr_t library_base();

}  // namespace emu
