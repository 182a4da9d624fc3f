#pragma once

#include <c10/core/Allocator.h>

namespace vlmtrain::memory {

/// What LibTorch took memory on the CPU from when this was first called, with what enable_large_block_cache() does
/// before it.
c10::Allocator* large_block_allocator();

}  // namespace vlmtrain::memory
