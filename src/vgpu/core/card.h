#pragma once

#include <cstdint>

#include "vlmtrain/memory/gpu_table.h"

namespace vlmtrain::vgpu {

/// The card that this process is on, from the environment: VLMTRAIN_VGPU_CARD (a name from the table of GPUs, h100 if
/// it is not set), VLMTRAIN_VGPU_BYTES (its memory, instead of the table's), VLMTRAIN_VGPU_REPORTED_BYTES (the size
/// that it says it has, instead of its memory), VLMTRAIN_VGPU_USED_BYTES (what is taken from the start: a context,
/// other processes).
struct Card {
  memory::Gpu gpu;
  memory::Architecture architecture;
  uint64_t memory_bytes = 0;
  uint64_t reported_bytes = 0;  ///< as cudaDeviceProp::totalGlobalMem
  uint64_t used_bytes = 0;
};

/// Null, after one report on stderr, where the environment does not name a card: there is no device then.
const Card* card();

}  // namespace vlmtrain::vgpu
