#pragma once

#include <cstddef>
#include <cstdint>

#include "emulator/runtime.h"
#include "findings.h"

namespace emu {

// Where in the code an access is: an address relative to the library, or the number that the tracer
// gave to a call of the shim.
struct Site {
  uint32_t is_call : 1;
  uint32_t value : 31;
};

// Who touches memory, and how often barriers have ordered it so far.
struct Touch {
  uint32_t group;            // threadgroup, counted from 1
  uint16_t lane;             // thread_index_in_threadgroup
  uint16_t epoch;            // threadgroup barriers that order this kind of memory
  uint16_t simdgroup_epoch;  // simdgroup barriers of the lane's simdgroup that do
  uint16_t quad_epoch;       // quadgroup barriers of the lane's quadgroup that do
  Site site;
  Access access;
};

// An access that conflicts with an earlier one, and what is known about that.
struct Race {
  bool with_store;
  bool with_atomic;
  uint32_t group;
  int lane;  // < 0: not known
  Site site;
};

// What is known about one byte of memory. All zero: never touched.
// Only barriers order memory. Two accesses by threads of one threadgroup, one of them a store, race
// unless a threadgroup barrier lies between, or, in one simdgroup, a simdgroup barrier, or, in one
// quadgroup, a quadgroup barrier; accesses of different threadgroups always do. Atomics do not race
// with each other.
class Cell {
 public:
  // Notes the access down. False: it races with an earlier one.
  bool touch(const Touch& touch, Race& race);
  // Forgets threadgroups that used the memory before this one.
  void start(uint32_t group) {
    if (group_ != group) *this = Cell{};
  }
  bool written_by(uint32_t group) const { return writer_group_ == group; }

 private:
  bool races_with_writer(const Touch& touch, Race& race) const;
  bool races_with_readers(const Touch& touch, Race& race) const;
  void note_read(const Touch& touch);
  void note_write(const Touch& touch);

  static constexpr uint32_t kSeveral = ~uint32_t{0};

  // Any of several threadgroups, in the whole launch.
  uint32_t writer_group_;
  uint32_t reader_group_;
  // By threads of threadgroup group_ since barrier epoch_; void for any other.
  uint32_t group_;
  uint32_t reader_simdgroups_;  // bit set
  uint32_t reader_lanes_;       // bit set, of the simdgroup that read last
  Site writer_site_;
  Site reader_site_;
  uint16_t epoch_;
  uint16_t writer_;  // lane + 1
  uint16_t writer_epoch_;
  uint16_t writer_quad_epoch_;
  uint16_t reader_epoch_;
  uint16_t reader_quad_epochs_[kLanes / kQuadLanes];  // when the bits of reader_lanes_ were set
  uint8_t reader_simdgroup_;
  bool writer_atomic_;
};

// The cells of a piece of memory, taken from the system as they are used.
class Shadow {
 public:
  Shadow() = default;
  Shadow(const Shadow&) = delete;
  Shadow& operator=(const Shadow&) = delete;
  ~Shadow();

  bool map(size_t bytes);
  Cell& cell(size_t byte) { return cells_[byte]; }
  bool mapped() const { return cells_ != nullptr; }

 private:
  Cell* cells_ = nullptr;
  size_t mapping_bytes_ = 0;
};

}  // namespace emu
