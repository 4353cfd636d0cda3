#pragma once

#include <cstdint>
#include <functional>

namespace mto {

// Calls f(0) .. f(n - 1), each once, in any order, on all cores; returns when all are done. What a
// call computes must not depend on the thread that runs it: then results do not depend on the
// thread count. Safe from several threads: while one call has the pool, another runs alone on its
// own thread.
void parallel_for(int64_t n, const std::function<void(int64_t)>& f);

int num_threads();
void set_num_threads(int n);

// A 64-byte aligned buffer that belongs to the calling thread, grows as needed, and is valid until
// the thread's next call.
void* thread_scratch(size_t n_bytes);

}  // namespace mto
