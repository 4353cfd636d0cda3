#include "pages.h"

#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

namespace emu {

size_t page_bytes() {
  static const auto bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

char* reserve(size_t bytes) {
  void* base = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return base == MAP_FAILED ? nullptr : static_cast<char*>(base);
}

bool allow_access(char* pages, size_t bytes) {
  return bytes == 0 || mprotect(pages, bytes, PROT_READ | PROT_WRITE) == 0;
}

uintptr_t library_base() {
  static const uintptr_t base = [] {
    Dl_info info;
    const bool found = dladdr(reinterpret_cast<void*>(&library_base), &info) != 0;
    return found ? reinterpret_cast<uintptr_t>(info.dli_fbase) : 0;
  }();
  return base;
}

}  // namespace emu
