#include "vgpu/runtime/fat_binary.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <thread>

#include "vgpu/core/card.h"
#include "vgpu/core/device_memory.h"

namespace vlmtrain::vgpu {

namespace {

// The layouts are not documented by NVIDIA; these are the fields that are needed, as they stand in the wheel's
// libraries (cuobjdump prints the same).
struct Wrapper {
  static constexpr uint32_t kMagic = 0x466243b1;
  uint32_t magic;
  uint32_t version;
  const std::byte* data;
};

struct Header {
  static constexpr uint32_t kMagic = 0xba55ed50;
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t body_bytes;
};

struct Entry {
  static constexpr uint16_t kPtx = 1;
  static constexpr uint16_t kMachineCode = 2;
  uint16_t kind;
  uint16_t unused_a;
  uint32_t header_bytes;
  uint64_t body_bytes;
  uint32_t unused_b[3];
  uint32_t architecture;
};
static_assert(offsetof(Entry, architecture) == 28);

template <class T>
T read(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof value);
  return value;
}

int find_newest(const std::vector<int>& architectures, int oldest, int limit) {
  int best = 0;
  for (const int architecture : architectures) {
    if (architecture >= oldest && architecture <= limit) best = std::max(best, architecture);
  }
  return best;
}

}  // namespace

void FatBinary::parse() {
  const auto wrapper = read<Wrapper>(static_cast<const std::byte*>(wrapper_));
  if (wrapper.magic != Wrapper::kMagic) return;
  const auto header = read<Header>(wrapper.data);
  if (header.magic != Header::kMagic) return;
  const std::byte* cursor = wrapper.data + header.header_bytes;
  const std::byte* const end = cursor + header.body_bytes;
  while (end - cursor >= static_cast<ptrdiff_t>(sizeof(Entry))) {
    const auto entry = read<Entry>(cursor);
    if (entry.header_bytes == 0) return;
    if (entry.kind == Entry::kMachineCode) machine_code_.push_back(static_cast<int>(entry.architecture));
    if (entry.kind == Entry::kPtx) ptx_.push_back(static_cast<int>(entry.architecture));
    cursor += entry.header_bytes + entry.body_bytes;
  }
}

int FatBinary::find_code(int architecture) {
  std::call_once(parse_once_, [this] { parse(); });
  const int exact = find_newest(machine_code_, architecture / 10 * 10, architecture);
  return exact != 0 ? exact : find_newest(ptx_, 0, architecture);
}

bool FatBinary::load() {
  if (loaded_) return true;
  const std::lock_guard<std::mutex> lock(load_mutex_);
  if (loaded_) return true;
  const ModuleLoadCost& module_load_cost = virtual_gpu()->module_load_cost;
  if (!device_memory().grow_context(module_load_cost.module_bytes)) return false;
  if (module_load_cost.module_seconds > 0)
    std::this_thread::sleep_for(std::chrono::duration<double>(module_load_cost.module_seconds));
  loaded_ = true;
  return true;
}

}  // namespace vlmtrain::vgpu
