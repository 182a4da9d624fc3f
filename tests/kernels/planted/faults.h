#pragma once

#include <vector>

namespace vlmtrain::kernels::planted {

// Kernels of one block of 256 threads, whole and with a fault each.

/// The sum of `values`, 256 of them, as each thread has it: through warps, then shared memory.
std::vector<float> block_sum(const std::vector<float>& values);
/// The same without the barrier between writing and reading shared memory.
std::vector<float> block_sum_without_barrier(const std::vector<float>& values);
/// Each thread writes its neighbour's place, and reads its own without a barrier between.
std::vector<float> race(const std::vector<float>& values);
/// A barrier that half of the threads come to.
void divergent_barrier();
/// Four neighbours that are read as one, from the second of `values` on.
void misaligned_read(const std::vector<float>& values);
/// Shared memory that nobody has written.
float unwritten();

}  // namespace vlmtrain::kernels::planted
