#pragma once

#include <cstdint>
#include <functional>
#include <limits>

namespace vlmtrain::kernels::emulation {

/// The order in which the threads of a block run, each until it waits. Results must not depend on
/// it: a missing barrier or a race changes them for some order.
enum class Order : int32_t { kForwards, kBackwards, kShuffled };

/// CUDA's dim3.
struct Size3 {
  unsigned x = 1, y = 1, z = 1;
};

/// Runs `body` once for each thread of each block, one block after another, on the calling thread.
///
/// Each GPU thread is a fiber. It runs until it ends or waits: at a barrier for all other threads
/// of its block, at a shuffle for all lanes of its warp. Warps therefore drift apart as far as
/// barriers allow. Throws std::runtime_error for a divergent barrier (some threads have ended) and
/// for a misaligned address.
void run_blocks(Size3 grid, Size3 block, const std::function<void()>& body);

/// Return the indices and sizes of the running thread, as threadIdx, blockIdx, blockDim and gridDim do.
Size3 thread_index();
Size3 block_index();
Size3 block_size();
Size3 grid_size();

/// Implements __syncthreads().
void wait_at_barrier();

/// Publishes `value` to the warp and returns the value of `lane`.
uint64_t shuffle_lane(uint64_t value, unsigned lane);

/// Marks that the running thread accesses several bytes at an address that is not a multiple of
/// their number.
void report_misaligned();

/// Registers shared memory, which is filled with NaN when a block begins, so that reads of
/// unwritten memory are detected.
void register_shared(void* memory, int64_t bytes);

/// Settings of the emulation. libvlmtrain_kernels_emulated.so returns its instance from
/// kSettingsFunction.
struct Settings {
  Order order = Order::kForwards;
  uint64_t seed = 1;  ///< for kShuffled
  /// Number of blocks of a grid's first dimension to run, the last ones: for tensors that are too
  /// large for a test to compute.
  int64_t last_blocks = std::numeric_limits<int64_t>::max();
};

/// Returns the settings of this library.
Settings& settings();

inline constexpr const char* kSettingsFunction = "vlmtrain_emulation_settings";

}  // namespace vlmtrain::kernels::emulation
