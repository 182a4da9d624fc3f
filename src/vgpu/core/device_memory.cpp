#include "vgpu/core/device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "vgpu/core/card.h"
#include "vgpu/core/faults.h"
#include "vgpu/core/immortal.h"
#include "vgpu/core/report.h"
#include "vgpu/core/trace.h"

namespace vlmtrain::vgpu {

namespace {

constexpr uint64_t kTiB = uint64_t{1} << 40;
constexpr uint64_t kAllocatedSpan = 8 * kTiB;
constexpr uint64_t kReservedSpan = 8 * kTiB;
constexpr uint64_t kVariableSpan = uint64_t{1} << 32;
constexpr uint64_t kVariableAlignment = 512;

uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// First address of `bytes` that no one can touch; 0 if the kernel refuses.
uint64_t untouchable_addresses(uint64_t bytes) {
  void* const address = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address != MAP_FAILED) return reinterpret_cast<uint64_t>(address);
  report({"no address space for the card's memory (is there a limit, ulimit -v?)"});
  return 0;
}

}  // namespace

std::optional<uint64_t> DeviceMemory::Region::first_gap(uint64_t bytes) const {
  uint64_t candidate = first;
  for (const auto& [address, size] : taken) {
    if (address - candidate >= bytes) return candidate;
    candidate = address + size;
  }
  return end - candidate >= bytes ? std::optional{candidate} : std::nullopt;
}

std::optional<uint64_t> DeviceMemory::Region::take(uint64_t bytes) {
  // Used addresses come back only once the region has been gone through, so that a stale pointer is noticed.
  const auto address = end - next >= bytes ? std::optional{next} : first_gap(bytes);
  if (!address) return std::nullopt;
  taken[*address] = bytes;
  next = std::max(next, *address + bytes);
  return address;
}

DeviceMemory::DeviceMemory() {
  const Card* const chosen = card();
  if (chosen == nullptr) return;
  const uint64_t reach = kAllocatedSpan + kReservedSpan + kVariableSpan;
  const uint64_t start = untouchable_addresses(reach + kPageBytes);
  if (start == 0) return;
  first_ = round_up(start, kPageBytes);
  end_ = first_ + reach;
  const auto region = [](uint64_t first, uint64_t span) { return Region{first, first + span, first, {}}; };
  allocated_ = region(first_, kAllocatedSpan);
  reserved_ = region(allocated_.end, kReservedSpan);
  variables_ = region(reserved_.end, kVariableSpan);
  capacity_bytes_ = chosen->memory_bytes;
  used_bytes_ = used_peak_bytes_ = std::min(chosen->used_bytes, capacity_bytes_);
}

bool DeviceMemory::fits(uint64_t bytes) {
  const bool enough = bytes <= capacity_bytes_ - used_bytes_ && !faults().strikes(Fallible::kDeviceAllocation);
  if (!enough) ++failed_allocations_;
  return enough;
}

void DeviceMemory::take(uint64_t bytes) {
  ++allocations_;
  trace().add({"take memory", std::to_string(bytes)});
  used_bytes_ += bytes;
  used_peak_bytes_ = std::max(used_peak_bytes_, used_bytes_);
}

void DeviceMemory::give_back(uint64_t bytes) {
  ++frees_;
  trace().add({"give memory back", std::to_string(bytes)});
  used_bytes_ -= bytes;
}

std::optional<uint64_t> DeviceMemory::allocate(uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t size = bytes > capacity_bytes_ ? bytes : round_up(bytes, kPageBytes);
  if (!fits(size)) return std::nullopt;
  const auto address = allocated_.take(size);
  if (address) take(size);
  return address;
}

bool DeviceMemory::free(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = allocated_.taken.find(address);
  if (found == allocated_.taken.end()) return false;
  give_back(found->second);
  allocated_.taken.erase(found);
  return true;
}

std::optional<uint64_t> DeviceMemory::create_pages(uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!fits(bytes)) return std::nullopt;
  take(bytes);
  pages_[next_handle_] = Pages{bytes};
  return next_handle_++;
}

void DeviceMemory::drop_if_unused(std::map<uint64_t, Pages>::iterator pages) {
  if (!pages->second.released || pages->second.mappings > 0) return;
  give_back(pages->second.bytes);
  pages_.erase(pages);
}

bool DeviceMemory::release_pages(uint64_t handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pages_.find(handle);
  if (found == pages_.end() || found->second.released) return false;
  found->second.released = true;
  drop_if_unused(found);
  return true;
}

bool DeviceMemory::map(uint64_t address, uint64_t handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = pages_.find(handle);
  if (found == pages_.end() || !mappings_.emplace(address, handle).second) return false;
  ++found->second.mappings;
  return true;
}

bool DeviceMemory::unmap(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto mapping = mappings_.find(address);
  if (mapping == mappings_.end()) return false;
  const auto pages = pages_.find(mapping->second);
  mappings_.erase(mapping);
  --pages->second.mappings;
  drop_if_unused(pages);
  return true;
}

std::optional<uint64_t> DeviceMemory::reserve_addresses(uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return reserved_.take(round_up(bytes, kPageBytes));
}

bool DeviceMemory::free_addresses(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return reserved_.taken.erase(address) > 0;
}

uint64_t DeviceMemory::reported_bytes() const {
  constexpr size_t kFirstSegments = 2;
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t said = card()->reported_bytes;
  return reserved_.taken.size() < kFirstSegments ? said : std::max(said, capacity_bytes_);
}

uint64_t DeviceMemory::place_variable(uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return variables_.take(round_up(bytes, kVariableAlignment)).value_or(0);
}

bool DeviceMemory::grow_context(uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t size = round_up(bytes, kPageBytes);
  if (size > capacity_bytes_ - used_bytes_) return false;
  used_bytes_ += size;
  used_peak_bytes_ = std::max(used_peak_bytes_, used_bytes_);
  return true;
}

bool DeviceMemory::contains(const void* pointer) const {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  return address >= first_ && address < end_;
}

uint64_t DeviceMemory::free_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return capacity_bytes_ - used_bytes_;
}

void DeviceMemory::read(Counters& counters) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  counters.allocations = allocations_;
  counters.frees = frees_;
  counters.failed_allocations = failed_allocations_;
  counters.capacity_bytes = capacity_bytes_;
  counters.used_bytes = used_bytes_;
  counters.used_peak_bytes = used_peak_bytes_;
}

void DeviceMemory::reset_counters() {
  const std::lock_guard<std::mutex> lock(mutex_);
  allocations_ = frees_ = failed_allocations_ = 0;
  used_peak_bytes_ = used_bytes_;
}

DeviceMemory& device_memory() {
  return immortal<DeviceMemory>();
}

}  // namespace vlmtrain::vgpu
