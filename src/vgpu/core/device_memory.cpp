#include "vgpu/core/device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "vgpu/core/fault_injector.h"
#include "vgpu/core/instrumentation.h"
#include "vgpu/core/object_lifetime.h"
#include "vgpu/core/virtual_gpu.h"

namespace vlmtrain::vgpu {

namespace {

constexpr uint64_t kTiB = uint64_t{1} << 40;
// Far larger than the memory of any GPU, so that addresses are rarely reused. The process reserves
// the addresses without memory. Not tuned.
constexpr uint64_t kAllocatedSpan = 8 * kTiB;
constexpr uint64_t kReservedSpan = 8 * kTiB;
// Variables of LibTorch's modules take some megabytes, so 4 GiB suffice.
constexpr uint64_t kVariableSpan = uint64_t{1} << 32;
constexpr uint64_t kVariableAlignment = 512;  // CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT

uint64_t round_up(uint64_t value, uint64_t unit) {
  return (value + unit - 1) / unit * unit;
}

/// Returns the first address of an inaccessible range. Returns 0, after a report on stderr, if the
/// kernel refuses.
uint64_t reserve_inaccessible_range(uint64_t bytes) {
  void* const address = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address != MAP_FAILED) return reinterpret_cast<uint64_t>(address);
  print_stderr_line({"cannot reserve address space for the GPU's memory; check the limit, ulimit -v"});
  return 0;
}

}  // namespace

std::optional<uint64_t> DeviceMemory::AddressRegion::find_gap(uint64_t bytes) const {
  uint64_t candidate_address = first;
  for (const auto& [address, size] : ranges) {
    if (address - candidate_address >= bytes) return candidate_address;
    candidate_address = address + size;
  }
  return end - candidate_address >= bytes ? std::optional{candidate_address} : std::nullopt;
}

std::optional<uint64_t> DeviceMemory::AddressRegion::allocate(uint64_t bytes) {
  // Addresses are reused only when the region is exhausted, so that the use of a freed address is
  // detected.
  const auto address = end - next >= bytes ? std::optional{next} : find_gap(bytes);
  if (!address) return std::nullopt;
  ranges[*address] = bytes;
  next = std::max(next, *address + bytes);
  return address;
}

DeviceMemory::DeviceMemory() {
  const VirtualGpu* const gpu = virtual_gpu();
  if (gpu == nullptr) return;
  const uint64_t total_span = kAllocatedSpan + kReservedSpan + kVariableSpan;
  const uint64_t start = reserve_inaccessible_range(total_span + kPageBytes);
  if (start == 0) return;
  first_address_ = round_up(start, kPageBytes);
  end_address_ = first_address_ + total_span;
  const auto make_region = [](uint64_t first, uint64_t span) { return AddressRegion{first, first + span, first, {}}; };
  allocation_region_ = make_region(first_address_, kAllocatedSpan);
  reservation_region_ = make_region(allocation_region_.end, kReservedSpan);
  variable_region_ = make_region(reservation_region_.end, kVariableSpan);
  capacity_bytes_ = gpu->memory_bytes;
  used_bytes_ = used_peak_bytes_ = std::min(gpu->used_bytes, capacity_bytes_);
}

bool DeviceMemory::try_fit(uint64_t bytes) {
  const bool has_space =
      bytes <= capacity_bytes_ - used_bytes_ && !fault_injector().should_fail(FaultPoint::kDeviceAllocation);
  if (!has_space) ++failed_allocations_;
  return has_space;
}

void DeviceMemory::record_allocation(uint64_t bytes) {
  ++allocations_;
  trace().add({"take memory", std::to_string(bytes)});
  used_bytes_ += bytes;
  used_peak_bytes_ = std::max(used_peak_bytes_, used_bytes_);
}

void DeviceMemory::record_free(uint64_t bytes) {
  ++frees_;
  trace().add({"give memory back", std::to_string(bytes)});
  used_bytes_ -= bytes;
}

std::optional<uint64_t> DeviceMemory::allocate(uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // A size above the capacity does not fit; rounding it up could overflow.
  const uint64_t size = bytes > capacity_bytes_ ? bytes : round_up(bytes, kPageBytes);
  if (!try_fit(size)) return std::nullopt;
  const auto address = allocation_region_.allocate(size);
  if (address) record_allocation(size);
  return address;
}

bool DeviceMemory::free(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = allocation_region_.ranges.find(address);
  if (it == allocation_region_.ranges.end()) return false;
  record_free(it->second);
  allocation_region_.ranges.erase(it);
  return true;
}

std::optional<uint64_t> DeviceMemory::create_pages(uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!try_fit(bytes)) return std::nullopt;
  record_allocation(bytes);
  pages_[next_handle_] = Pages{bytes};
  return next_handle_++;
}

void DeviceMemory::free_if_unused(std::map<uint64_t, Pages>::iterator pages) {
  if (!pages->second.is_released || pages->second.num_mappings > 0) return;
  record_free(pages->second.bytes);
  pages_.erase(pages);
}

bool DeviceMemory::release_pages(uint64_t handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = pages_.find(handle);
  if (it == pages_.end() || it->second.is_released) return false;
  it->second.is_released = true;
  free_if_unused(it);
  return true;
}

bool DeviceMemory::map(uint64_t address, uint64_t handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = pages_.find(handle);
  if (it == pages_.end() || !mappings_.emplace(address, handle).second) return false;
  ++it->second.num_mappings;
  return true;
}

bool DeviceMemory::unmap(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto mapping = mappings_.find(address);
  if (mapping == mappings_.end()) return false;
  const auto pages = pages_.find(mapping->second);
  mappings_.erase(mapping);
  --pages->second.num_mappings;
  free_if_unused(pages);
  return true;
}

std::optional<uint64_t> DeviceMemory::reserve_addresses(uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return reservation_region_.allocate(round_up(bytes, kPageBytes));
}

bool DeviceMemory::free_addresses(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return reservation_region_.ranges.erase(address) > 0;
}

uint64_t DeviceMemory::reported_bytes() const {
  constexpr size_t kPlannedSegments = 2;  // one each for PyTorch's pools of small and large blocks
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t reported = virtual_gpu()->reported_bytes;
  return reservation_region_.ranges.size() < kPlannedSegments ? reported : std::max(reported, capacity_bytes_);
}

uint64_t DeviceMemory::allocate_variable(uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return variable_region_.allocate(round_up(bytes, kVariableAlignment)).value_or(0);
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
  return address >= first_address_ && address < end_address_;
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
  return get_leaky_singleton<DeviceMemory>();
}

}  // namespace vlmtrain::vgpu
