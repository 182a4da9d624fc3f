#pragma once

#include <c10/core/Allocator.h>

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

inline constexpr int64_t kLargeBlockBytes = 1 << 20;

/// From now on malloc takes each block of kLargeBlockBytes or more from the system and gives it back once it is freed.
/// By default it keeps blocks of up to 32 MiB in one piece of memory that only shrinks at its end: gigabytes of
/// activations that were freed stay resident below a few small blocks that live on. For the whole process; what was
/// taken before stays as it is. Does nothing where malloc is another's (LD_PRELOAD).
void use_mmap_for_large_blocks();

/// What LibTorch took memory on the CPU from when this was first called, with what enable_large_block_cache() does
/// before it.
c10::Allocator* large_block_allocator();

}  // namespace vlmtrain::memory
