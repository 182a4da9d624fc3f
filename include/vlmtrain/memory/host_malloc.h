#pragma once

#include <cstdint>

namespace vlmtrain::memory {

inline constexpr int64_t kLargeBlockBytes = 1 << 20;

/// From now on malloc takes each block of kLargeBlockBytes or more from the system and gives it back once it is freed.
/// By default it keeps blocks of up to 32 MiB in one piece of memory that only shrinks at its end: gigabytes of
/// activations that were freed stay resident below a few small blocks that live on. For the whole process; what was
/// taken before stays as it is. Does nothing where malloc is another's (LD_PRELOAD).
void use_mmap_for_large_blocks();

}  // namespace vlmtrain::memory
