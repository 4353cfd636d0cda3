#include "stack_pool.h"

namespace emu {
namespace {

StackPool own_pool;
StackPool* pool_in_use = &own_pool;

}  // namespace

StackPool& stack_pool() { return *pool_in_use; }

void set_stack_pool(StackPool* pool) { pool_in_use = pool; }

char* StackPool::take(int& n_stacks, size_t stack_bytes) {
  for (Entry& entry : entries_) {
    int free = kFree;
    if (!entry.state.compare_exchange_strong(free, kTaken)) continue;
    if (entry.n_stacks < n_stacks || entry.stack_bytes != stack_bytes) {
      entry.state = kFree;
      continue;
    }
    char* memory = entry.memory;
    n_stacks = entry.n_stacks;
    n_stacks_ -= n_stacks;
    entry.state = kEmpty;
    return memory;
  }
  return nullptr;
}

bool StackPool::give(char* memory, int n_stacks, size_t stack_bytes) {
  if (n_stacks_.fetch_add(n_stacks) + n_stacks <= kMostStacks) {
    for (Entry& entry : entries_) {
      int empty = kEmpty;
      if (!entry.state.compare_exchange_strong(empty, kTaken)) continue;
      entry.n_stacks = n_stacks;
      entry.stack_bytes = stack_bytes;
      entry.memory = memory;
      entry.state = kFree;
      return true;
    }
  }
  n_stacks_ -= n_stacks;
  return false;
}

}  // namespace emu
