#include "vlmtrain/memory/host_malloc.h"

#include <malloc.h>

namespace vlmtrain::memory {

namespace {

/// Of the small blocks' memory, what is kept free at its end: otherwise each step would give it back and take it again.
constexpr int kTrimThresholdBytes = 32 << 20;
/// Linux allows a process 65,530 areas of memory in all.
constexpr int kMaxMmapBlocks = 32'000;

}  // namespace

void use_mmap_for_large_blocks() {
  // Setting the threshold is what keeps malloc from raising it with each block that is freed.
  mallopt(M_MMAP_THRESHOLD, static_cast<int>(kLargeBlockBytes));
  mallopt(M_TRIM_THRESHOLD, kTrimThresholdBytes);
  mallopt(M_MMAP_MAX, kMaxMmapBlocks);
}

}  // namespace vlmtrain::memory
