#pragma once

#include <atomic>
#include <cstddef>

namespace emu {

// Memory of stacks between launches: to map a thousand stacks takes longer than most launches. All
// libraries of a process share one pool, because each stack costs two of the mappings of which a
// process has some ten thousands.
class StackPool {
 public:
  // Memory for at least n stacks of that many bytes, n becoming how many it has; null: there is
  // none.
  char* take(int& n_stacks, size_t stack_bytes);
  // False: there is no room for it.
  bool give(char* memory, int n_stacks, size_t stack_bytes);

 private:
  enum State : int { kEmpty, kFree, kTaken };
  struct Entry {
    std::atomic<int> state;
    int n_stacks;
    size_t stack_bytes;
    char* memory;
  };
  static constexpr int kEntries = 64;
  static constexpr int kMostStacks = 8192;

  // All zero in an empty pool.
  Entry entries_[kEntries];
  std::atomic<int> n_stacks_;
};

// That of this library, until another is set.
StackPool& stack_pool();
void set_stack_pool(StackPool* pool);

}  // namespace emu
