// The self-test links this in: one name that each library of the link does not have, kept alive by
// a constructor. A link that accepts any of them is not strict.

namespace mlx::core::metal {
bool is_nax_available();  // in MLX's headers, but not exported from libmlx.dylib
}

namespace std::inline __1 {
unsigned long __hash_memory(const void* data, unsigned long size);  // newer than macOS 26's libc++
}

extern "C" {
int memfd_create(const char* name, unsigned flags);  // Linux has it, macOS does not
void PyPlanted_Missing();
void* MTLPlantedMissing();
}

__attribute__((constructor, used, visibility("default"))) static void planted() {
  MTLPlantedMissing();
  PyPlanted_Missing();
  memfd_create("", static_cast<unsigned>(mlx::core::metal::is_nax_available()));
  std::__hash_memory("", 0);
}
