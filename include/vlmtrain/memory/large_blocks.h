#pragma once

#include <c10/core/Allocator.h>

#include <cstdint>

namespace vlmtrain::memory {

/// Size from which an allocation counts as a large block. A smaller threshold would map and clear
/// pages for small tensors; a larger one would leave more freed memory resident.
inline constexpr int64_t kLargeBlockBytes = 1 << 20;

/// Makes malloc serve blocks of kLargeBlockBytes or more with mmap, and unmap them when they are
/// freed. By default malloc keeps blocks of up to 32 MiB on a heap that shrinks only at its end, so
/// gigabytes of freed activations stay resident below a few small live blocks. Affects the whole
/// process and later allocations only. Has no effect on another malloc (LD_PRELOAD).
void use_mmap_for_large_blocks();

/// Makes LibTorch's CPU allocator keep freed blocks of kLargeBlockBytes or more and reuse them.
/// Mapping new pages for each tensor makes CPU steps about half as long again. The peak of resident
/// memory stays that of the live tensors. Affects the whole process.
void enable_large_block_cache();

/// Returns unused cached blocks to the system.
void release_large_block_cache();

/// Memory of the large-block cache.
struct LargeBlockStats {
  int64_t live_bytes = 0;
  int64_t cached_bytes = 0;  ///< used by no tensor
};
/// Returns the current memory of the cache. Thread-safe.
LargeBlockStats get_large_block_stats();

/// Returns the allocator that caches large blocks in front of LibTorch's CPU allocator. It wraps the
/// allocator that was current at the first call. Never freed.
c10::Allocator* large_block_allocator();

}  // namespace vlmtrain::memory
