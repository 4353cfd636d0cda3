#include "support.h"

#include <cstdio>
#include <cstdlib>
#include <new>

namespace emu {

std::string text(int64_t value) {
  char digits[32];
  snprintf(digits, sizeof digits, "%lld", static_cast<long long>(value));
  return digits;
}

}  // namespace emu

void* operator new(size_t bytes) {
  void* p = malloc(bytes);
  if (p == nullptr) abort();
  return p;
}

void operator delete(void* p) noexcept { free(p); }
void operator delete(void* p, size_t) noexcept { free(p); }

// The parts of std::string that headers leave to the library.
template class std::basic_string<char>;
template std::string std::operator+(const char*, const std::string&);

// Where containers end up instead of throwing.
#ifdef _LIBCPP_VERSION
_LIBCPP_BEGIN_NAMESPACE_STD
[[noreturn]] void __libcpp_verbose_abort(const char*, ...) noexcept { abort(); }
_LIBCPP_END_NAMESPACE_STD
#else
namespace std {
void __throw_logic_error(const char*) { abort(); }
void __throw_length_error(const char*) { abort(); }
void __throw_bad_array_new_length() { abort(); }
void __throw_bad_alloc() { abort(); }
void __throw_out_of_range_fmt(const char*, ...) { abort(); }
}  // namespace std
#endif
