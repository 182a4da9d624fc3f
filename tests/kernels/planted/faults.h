#pragma once

#include <vector>

namespace vlmtrain::kernels::planted {

// Kernels of one block of 256 threads: one correct, the others with one fault each.

/// Each thread returns the sum of 256 `values`, through warps and shared memory.
std::vector<float> block_sum(const std::vector<float>& values);
/// As above, without the barrier between writing and reading shared memory.
std::vector<float> block_sum_without_barrier(const std::vector<float>& values);
/// Each thread writes its neighbor's element and reads its own without a barrier in between.
std::vector<float> race(const std::vector<float>& values);
/// Half of the threads reach a barrier.
void divergent_barrier();
/// Reads four elements as one, from the second of `values` on, which is misaligned.
void misaligned_read(const std::vector<float>& values);
/// Reads shared memory that no thread has written.
float unwritten();

}  // namespace vlmtrain::kernels::planted
