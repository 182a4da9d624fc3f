#pragma once

#include <cstdint>
#include <functional>
#include <limits>

namespace vlmtrain::kernels::emulation {

/// The order in which the threads of a block are run, each as far as it can: what a kernel computes must not depend on
/// it. Where a barrier is missing, or two threads write one place, some order shows it.
enum class Order : int32_t { kForwards, kBackwards, kShuffled };

struct Size3 {
  unsigned x = 1, y = 1, z = 1;
};

/// Runs `body` once for each thread of each block, one block after another, on this thread of the host.
///
/// A thread is a fiber. It runs until it ends or waits: at a barrier of its block until all others have come there, at
/// a shuffle until all lanes of its warp have. So warps drift apart as far as barriers let them. Throws
/// std::runtime_error where some threads of a block wait for others that have ended (a divergent barrier), and where
/// one has used a misaligned address.
void run_blocks(Size3 grid, Size3 block, const std::function<void()>& body);

/// Of the thread that runs.
Size3 thread_index();
Size3 block_index();
Size3 block_size();
Size3 grid_size();

/// __syncthreads().
void wait_at_barrier();

/// Offers `value` to the warp and takes what `lane` offers.
uint64_t shuffle_lane(uint64_t value, unsigned lane);

/// The thread that runs reads or writes several bytes at once, at an address that is no multiple of their number.
void report_misaligned();

/// Memory of a block: filled with not-a-numbers when a block begins, so that what nobody wrote is seen.
void register_shared(void* memory, int64_t bytes);

/// What tests may choose; libvlmtrain_kernels_emulated.so has one, at vlmtrain_emulation_settings().
struct Settings {
  Order order = Order::kForwards;
  uint64_t seed = 1;  ///< of kShuffled
  /// Of a grid's first dimension only so many blocks run, the last: for tensors larger than a test could fill.
  int64_t last_blocks = std::numeric_limits<int64_t>::max();
};

Settings& settings();

inline constexpr const char* kSettingsFunction = "vlmtrain_emulation_settings";

}  // namespace vlmtrain::kernels::emulation
