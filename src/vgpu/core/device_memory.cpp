#include "vgpu/core/device_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <string>

#include "vgpu/core/instrumentation.h"
#include "vgpu/core/object_lifetime.h"
#include "vgpu/core/virtual_gpu.h"

namespace vlmtrain::vgpu {

namespace {

constexpr uint64_t kTiB = uint64_t{1} << 40;
// Far larger than the memory of any GPU, so that addresses are rarely reused. The process reserves
// the addresses without memory. Not tuned.
constexpr uint64_t kAllocationRegionBytes = 8 * kTiB;
constexpr uint64_t kReservationRegionBytes = 8 * kTiB;
// Variables of LibTorch's modules take some megabytes, so 4 GiB suffice.
constexpr uint64_t kVariableRegionBytes = uint64_t{1} << 32;
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

std::optional<uint64_t> DeviceMemory::AddressRegion::find_free_address(uint64_t bytes) const {
  uint64_t candidate_address = first;
  for (const auto& [address, size] : used_ranges) {
    if (address - candidate_address >= bytes) return candidate_address;
    candidate_address = address + size;
  }
  return end - candidate_address >= bytes ? std::optional{candidate_address} : std::nullopt;
}

std::optional<uint64_t> DeviceMemory::AddressRegion::allocate(uint64_t bytes) {
  // Addresses are reused only when the region is exhausted, so that the use of a freed address is
  // detected.
  const auto address = end - next >= bytes ? std::optional{next} : find_free_address(bytes);
  if (!address) return std::nullopt;
  used_ranges[*address] = bytes;
  next = std::max(next, *address + bytes);
  return address;
}

DeviceMemory::DeviceMemory() {
  const VirtualGpu* const gpu = virtual_gpu();
  if (gpu == nullptr) return;
  const uint64_t total_region_bytes = kAllocationRegionBytes + kReservationRegionBytes + kVariableRegionBytes;
  const uint64_t start = reserve_inaccessible_range(total_region_bytes + kPageBytes);
  if (start == 0) return;
  first_address_ = round_up(start, kPageBytes);
  end_address_ = first_address_ + total_region_bytes;
  const auto make_region = [](uint64_t first, uint64_t span) { return AddressRegion{first, first + span, first, {}}; };
  allocation_region_ = make_region(first_address_, kAllocationRegionBytes);
  reservation_region_ = make_region(allocation_region_.end, kReservationRegionBytes);
  variable_region_ = make_region(reservation_region_.end, kVariableRegionBytes);
  capacity_bytes_ = gpu->memory_bytes;
  used_bytes_ = peak_used_bytes_ = std::min(gpu->used_bytes, capacity_bytes_);
}

bool DeviceMemory::try_fit_allocation(uint64_t bytes) {
  const bool has_space = bytes <= capacity_bytes_ - used_bytes_ &&
                         !fault_injector().consume_scheduled_fault(FaultPoint::kDeviceAllocation);
  if (!has_space) ++num_failed_allocations_;
  return has_space;
}

void DeviceMemory::record_allocation(uint64_t bytes) {
  ++num_allocations_;
  operation_trace().add({"take memory", std::to_string(bytes)});
  used_bytes_ += bytes;
  peak_used_bytes_ = std::max(peak_used_bytes_, used_bytes_);
}

void DeviceMemory::record_free(uint64_t bytes) {
  ++num_frees_;
  operation_trace().add({"give memory back", std::to_string(bytes)});
  used_bytes_ -= bytes;
}

std::optional<uint64_t> DeviceMemory::allocate(uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  // A size above the capacity does not fit; rounding it up could overflow.
  const uint64_t size = bytes > capacity_bytes_ ? bytes : round_up(bytes, kPageBytes);
  if (!try_fit_allocation(size)) return std::nullopt;
  const auto address = allocation_region_.allocate(size);
  if (address) record_allocation(size);
  return address;
}

bool DeviceMemory::free(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = allocation_region_.used_ranges.find(address);
  if (it == allocation_region_.used_ranges.end()) return false;
  record_free(it->second);
  allocation_region_.used_ranges.erase(it);
  return true;
}

std::optional<uint64_t> DeviceMemory::create_pages(uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!try_fit_allocation(bytes)) return std::nullopt;
  record_allocation(bytes);
  physical_allocations_[next_handle_] = PhysicalAllocation{bytes};
  return next_handle_++;
}

void DeviceMemory::free_if_unused(std::map<uint64_t, PhysicalAllocation>::iterator allocation) {
  if (!allocation->second.is_released || allocation->second.num_mappings > 0) return;
  record_free(allocation->second.bytes);
  physical_allocations_.erase(allocation);
}

bool DeviceMemory::release_pages(uint64_t handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = physical_allocations_.find(handle);
  if (it == physical_allocations_.end() || it->second.is_released) return false;
  it->second.is_released = true;
  free_if_unused(it);
  return true;
}

bool DeviceMemory::map_pages(uint64_t address, uint64_t handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto it = physical_allocations_.find(handle);
  if (it == physical_allocations_.end() || !mappings_.emplace(address, handle).second) return false;
  ++it->second.num_mappings;
  return true;
}

bool DeviceMemory::unmap_pages(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto mapping = mappings_.find(address);
  if (mapping == mappings_.end()) return false;
  const auto allocation = physical_allocations_.find(mapping->second);
  mappings_.erase(mapping);
  --allocation->second.num_mappings;
  free_if_unused(allocation);
  return true;
}

std::optional<uint64_t> DeviceMemory::reserve_addresses(uint64_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return reservation_region_.allocate(round_up(bytes, kPageBytes));
}

bool DeviceMemory::free_addresses(uint64_t address) {
  const std::lock_guard<std::mutex> lock(mutex_);
  return reservation_region_.used_ranges.erase(address) > 0;
}

uint64_t DeviceMemory::reported_bytes() const {
  constexpr size_t kNumPlannedSegments = 2;  // one each for PyTorch's pools of small and large blocks
  const std::lock_guard<std::mutex> lock(mutex_);
  const uint64_t configured_bytes = virtual_gpu()->reported_bytes;
  return reservation_region_.used_ranges.size() < kNumPlannedSegments ? configured_bytes
                                                                      : std::max(configured_bytes, capacity_bytes_);
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
  peak_used_bytes_ = std::max(peak_used_bytes_, used_bytes_);
  return true;
}

bool DeviceMemory::contains(const void* pointer) const {
  const auto address = reinterpret_cast<uint64_t>(pointer);
  return address >= first_address_ && address < end_address_;
}

uint64_t DeviceMemory::available_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return capacity_bytes_ - used_bytes_;
}

void DeviceMemory::read(GpuCounters& counters) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  counters.num_allocations = num_allocations_;
  counters.num_frees = num_frees_;
  counters.num_failed_allocations = num_failed_allocations_;
  counters.capacity_bytes = capacity_bytes_;
  counters.used_bytes = used_bytes_;
  counters.peak_used_bytes = peak_used_bytes_;
}

void DeviceMemory::reset_counters() {
  const std::lock_guard<std::mutex> lock(mutex_);
  num_allocations_ = num_frees_ = num_failed_allocations_ = 0;
  peak_used_bytes_ = used_bytes_;
}

DeviceMemory& device_memory() {
  return get_leaky_singleton<DeviceMemory>();
}

}  // namespace vlmtrain::vgpu
