#include "shadow.h"

#include <sys/mman.h>

#include "pages.h"

namespace emu {
namespace {

constexpr int kLanesShift = 5;

uint32_t bit(uint32_t index) { return uint32_t{1} << index; }

// Of a lane, in its simdgroup.
uint32_t quad_of(uint32_t lane) { return lane % kLanes / kQuadLanes; }
uint32_t quad_bits(uint32_t quad) { return uint32_t{0xF} << (quad * kQuadLanes); }

}  // namespace

bool Cell::touch(const Touch& touch, Race& race) {
  if (group_ != touch.group || epoch_ != touch.epoch) {
    group_ = touch.group;
    epoch_ = touch.epoch;
    writer_ = 0;
    reader_simdgroups_ = 0;
  }
  const bool reads = touch.access == Access::kLoad;
  const bool races = races_with_writer(touch, race) || (!reads && races_with_readers(touch, race));
  reads ? note_read(touch) : note_write(touch);
  return !races;
}

bool Cell::races_with_writer(const Touch& touch, Race& race) const {
  if (writer_group_ == 0 || (writer_atomic_ && touch.access == Access::kAtomic)) return false;
  race.with_store = true;
  race.with_atomic = writer_atomic_;
  race.group = writer_group_;
  race.site = writer_site_;
  race.lane = writer_ - 1;
  if (writer_group_ != touch.group) {
    race.lane = -1;
    return true;
  }
  if (writer_ == 0 || writer_ - 1 == touch.lane) return false;
  const uint32_t writer = writer_ - 1;
  const bool same_simdgroup = writer >> kLanesShift == touch.lane >> kLanesShift;
  if (!same_simdgroup) return true;
  if (writer_epoch_ != touch.simdgroup_epoch) return false;
  return quad_of(writer) != quad_of(touch.lane) || writer_quad_epoch_ == touch.quad_epoch;
}

bool Cell::races_with_readers(const Touch& touch, Race& race) const {
  race.with_store = false;
  race.with_atomic = false;
  race.group = reader_group_;
  race.site = reader_site_;
  race.lane = -1;
  if (reader_group_ != 0 && reader_group_ != touch.group) return true;
  const uint32_t simdgroup = touch.lane >> kLanesShift;
  if ((reader_simdgroups_ & ~bit(simdgroup)) != 0) return true;
  if (reader_simdgroups_ == 0 || reader_epoch_ != touch.simdgroup_epoch) return false;
  uint32_t others = reader_lanes_ & ~bit(touch.lane % kLanes);
  const uint32_t quad = quad_of(touch.lane);
  if (reader_quad_epochs_[quad] != touch.quad_epoch) others &= ~quad_bits(quad);
  if (others == 0) return false;
  race.lane = static_cast<int>(simdgroup * kLanes) + __builtin_ctz(others);
  return true;
}

void Cell::note_read(const Touch& touch) {
  reader_group_ = reader_group_ == 0 || reader_group_ == touch.group ? touch.group : kSeveral;
  const auto simdgroup = static_cast<uint8_t>(touch.lane >> kLanesShift);
  const bool continues = reader_simdgroups_ != 0 && reader_simdgroup_ == simdgroup &&
                         reader_epoch_ == touch.simdgroup_epoch;
  if (!continues) reader_lanes_ = 0;
  const uint32_t quad = quad_of(touch.lane);
  // What the lane's quadgroup read before its barrier tells other quadgroups no more than this
  // read.
  if (reader_quad_epochs_[quad] != touch.quad_epoch) reader_lanes_ &= ~quad_bits(quad);
  reader_quad_epochs_[quad] = touch.quad_epoch;
  reader_lanes_ |= bit(touch.lane % kLanes);
  reader_simdgroups_ |= bit(simdgroup);
  reader_simdgroup_ = simdgroup;
  reader_epoch_ = touch.simdgroup_epoch;
  reader_site_ = touch.site;
}

void Cell::note_write(const Touch& touch) {
  writer_group_ = touch.group;
  writer_ = static_cast<uint16_t>(touch.lane + 1);
  writer_epoch_ = touch.simdgroup_epoch;
  writer_quad_epoch_ = touch.quad_epoch;
  writer_site_ = touch.site;
  writer_atomic_ = touch.access == Access::kAtomic;
}

Shadow::~Shadow() {
  if (cells_ != nullptr) munmap(cells_, mapping_bytes_);
}

bool Shadow::map(size_t bytes) {
  mapping_bytes_ = round_up(bytes * sizeof(Cell), page_bytes());
  char* memory = reserve(mapping_bytes_);
  if (memory == nullptr || !allow_access(memory, mapping_bytes_)) return false;
  cells_ = reinterpret_cast<Cell*>(memory);
  return true;
}

}  // namespace emu
