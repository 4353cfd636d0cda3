#pragma once

#include <pthread.h>

#include <cstdint>
#include <string>

// The runtime uses the headers of the C++ library but is linked without it: ziglang compiles its
// C++ library on first use, which takes minutes.

namespace emu {

class Mutex {
 public:
  void lock() { pthread_mutex_lock(&mutex_); }
  void unlock() { pthread_mutex_unlock(&mutex_); }

 private:
  pthread_mutex_t mutex_ = PTHREAD_MUTEX_INITIALIZER;
};

class Lock {
 public:
  explicit Lock(Mutex& mutex) : mutex_(mutex) { mutex_.lock(); }
  Lock(const Lock&) = delete;
  Lock& operator=(const Lock&) = delete;
  ~Lock() { mutex_.unlock(); }

 private:
  Mutex& mutex_;
};

std::string text(int64_t value);

}  // namespace emu
