#pragma once

#include <cstdint>

namespace vlmtrain::memory {

/// From now on the memory of tensors on the CPU of kLargeBlockBytes (memory/host_malloc.h) or more is kept when they
/// are freed, for the next ones: what is taken from the system anew for each tensor takes a CPU run half as long again.
/// The peak of resident memory stays that of the tensors that live at once. For the whole process.
void enable_large_block_cache();

/// Gives the system what is kept and used by no tensor.
void release_large_block_cache();

/// Of the tensors that enable_large_block_cache() is for.
struct LargeBlockStats {
  int64_t live_bytes = 0;
  int64_t cached_bytes = 0;  ///< used by no tensor
};
LargeBlockStats get_large_block_stats();

}  // namespace vlmtrain::memory
