#pragma once

#include <cstdint>
#include <functional>
#include <limits>

namespace vlmtrain::kernels::emulation {

/// The order in which the threads of a block run, each until it waits. The results of a correct
/// kernel do not depend on the order; a missing barrier or a race changes them in some order.
enum class ThreadOrder : int32_t { kForwards, kBackwards, kShuffled };

/// CUDA's dim3.
struct Dim3 {
  unsigned x = 1, y = 1, z = 1;
};

/// Runs `body` once for each thread of each block, one block after another, on the calling thread.
///
/// Each GPU thread is a fiber. It runs until it ends or waits: at a barrier for all other threads
/// of its block, at a shuffle for all lanes of its warp. Warps therefore drift apart as far as
/// barriers allow. Concurrent calls run one after another. Throws std::runtime_error if some
/// threads of a block end before a barrier, if a shuffle reads from a lane that does not take part,
/// and for a misaligned address.
void run_blocks(Dim3 grid, Dim3 block, const std::function<void()>& body);

// threadIdx, blockIdx, blockDim and gridDim of the running thread. REQUIRES: called by a kernel.

Dim3 thread_index();
Dim3 block_index();
Dim3 block_size();
Dim3 grid_size();

/// Implements __syncthreads().
void wait_at_barrier();

/// Implements a warp shuffle: publishes `value` to the warp and returns the value of `lane`.
uint64_t shuffle_lane(uint64_t value, unsigned lane);

/// Records that the running thread accesses several bytes at an address that is not a multiple of
/// their number. run_blocks() throws after the block.
void report_misaligned_access();

/// Registers shared memory, which must live as long as the program. It is filled with NaN when a
/// block begins, so that reads of unwritten memory are detected.
void register_shared_memory(void* memory, int64_t bytes);

/// Settings of the emulation, for tests. libvlmtrain_kernels_emulated.so exports a function
/// kEmulationSettingsSymbol that returns its instance.
struct EmulationSettings {
  ThreadOrder order = ThreadOrder::kForwards;
  uint64_t seed = 1;  ///< for kShuffled
  /// Runs only this many blocks at the end of a grid's first dimension. For tensors that are too
  /// large for a test to compute.
  int64_t max_trailing_blocks = std::numeric_limits<int64_t>::max();
};

/// Returns the settings of this library, which apply to launches that begin later.
EmulationSettings& settings();

inline constexpr const char* kEmulationSettingsSymbol = "vlmtrain_emulation_settings";

}  // namespace vlmtrain::kernels::emulation
