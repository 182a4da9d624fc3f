#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>

#include "vlmtrain/memory/host.h"

namespace vlmtrain::memory {

inline constexpr int64_t kNoHostLimit = std::numeric_limits<int64_t>::max();

/// Of a process, as `ulimit -v` and `ulimit -d` set them, in bytes.
struct AddressLimits {
  int64_t address_space = kNoHostLimit;
  int64_t data = kNoHostLimit;
};

/// host_limit_bytes() and get_available_host_memory() of a machine whose proc/ and sys/ are in `root`.
int64_t host_limit_bytes(const std::filesystem::path& root);
AvailableHostMemory get_available_host_memory(const std::filesystem::path& root, const AddressLimits& limits);

}  // namespace vlmtrain::memory
