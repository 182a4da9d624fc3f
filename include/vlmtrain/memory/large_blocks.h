#pragma once

#include <cstdint>

namespace vlmtrain::memory {

/// From now on the memory of tensors on the CPU of kLargeBlockBytes (memory/host_malloc.h) or more is kept when they
/// are freed, for the next ones: what is taken from the system anew for each tensor takes a CPU run half as long again.
/// The peak of resident memory stays that of the tensors that live at once. For the whole process.
void keep_large_blocks();

/// Gives the system what is kept and used by no tensor.
void release_large_blocks();

/// Of the tensors that keep_large_blocks() is for.
struct LargeBlocks {
  int64_t live_bytes = 0;
  int64_t kept_bytes = 0;  ///< used by no tensor
};
LargeBlocks large_blocks();

}  // namespace vlmtrain::memory
