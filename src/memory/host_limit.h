#pragma once

#include <cstdint>
#include <filesystem>

namespace vlmtrain::memory {

/// host_limit_bytes() of a machine whose proc/ and sys/ are in `root`.
int64_t host_limit_bytes(const std::filesystem::path& root);

}  // namespace vlmtrain::memory
