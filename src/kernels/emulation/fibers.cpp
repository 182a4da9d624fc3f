#include "kernels/emulation/fibers.h"

#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

namespace vlmtrain::kernels::emulation {

namespace {

/// A stack that execution switches to and from, as AddressSanitizer needs to know it. Without the
/// sanitizer, the functions do nothing.
struct SwitchedStack {
  const void* bottom = nullptr;
  size_t bytes = 0;
  void* sanitizer_state = nullptr;  // of the suspended stack

  /// Announces a switch from this stack to `target`.
  void leave([[maybe_unused]] const SwitchedStack& target) {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_start_switch_fiber(&sanitizer_state, target.bottom, target.bytes);
#endif
  }
  /// Ends a switch to this stack. Sets the bounds of `source`, the stack that was left, if it is given.
  void enter([[maybe_unused]] SwitchedStack* source) const {
#ifdef __SANITIZE_ADDRESS__
    __sanitizer_finish_switch_fiber(sanitizer_state, source == nullptr ? nullptr : &source->bottom,
                                    source == nullptr ? nullptr : &source->bytes);
#endif
  }
};

constexpr size_t kStackBytes = size_t{64} << 10;  // a kernel that overflows it crashes the test
constexpr size_t kWarpSize = 32;

enum class FiberState { kReady, kAtShuffle, kAtBarrier, kDone };

/// A thread of a block on a stack of its own, which runs one block after another. Suspended by
/// setjmp(), because swapcontext() makes a system call each time.
struct Fiber {
  jmp_buf context;
  bool is_started = false;
  std::unique_ptr<std::byte[]> stack = std::make_unique<std::byte[]>(kStackBytes);
  SwitchedStack switched_stack{.bottom = stack.get(), .bytes = kStackBytes};
  FiberState state = FiberState::kReady;
  Dim3 thread_index{};
  uint64_t shuffle_value = 0;
  unsigned source_lane = 0;
  uint64_t received_value = 0;
};

struct SharedMemoryRegion {
  void* memory;
  int64_t bytes;
};

/// The state of the running launch; one block runs at a time.
struct Emulator {
  std::mutex launch_mutex;
  jmp_buf scheduler_context;
  SwitchedStack scheduler_stack;  // bounds known once a fiber runs
  std::vector<Fiber> idle_fibers;
  Fiber* running_fiber = nullptr;
  size_t num_done_fibers = 0;  // in the block
  bool has_misaligned_access = false;
  const std::function<void()>* body = nullptr;
  Dim3 block, grid_size, block_size;
  std::vector<SharedMemoryRegion> shared_memory_regions;
  std::mt19937_64 random_engine;
};

Emulator& get_emulator() {
  static Emulator instance;
  return instance;
}

void poison_shared_memory(const SharedMemoryRegion& shared) {
  // All bits set are a NaN in every floating-point type.
  std::memset(shared.memory, 0xff, static_cast<size_t>(shared.bytes));
}

/// Suspends the running fiber in this state until the scheduler resumes it.
[[gnu::noinline]] void yield_fiber(FiberState state) {
  Fiber& fiber = *get_emulator().running_fiber;
  fiber.state = state;
  if (_setjmp(fiber.context) == 0) {
    fiber.switched_stack.leave(get_emulator().scheduler_stack);
    _longjmp(get_emulator().scheduler_context, 1);
  }
  get_emulator().running_fiber->switched_stack.enter(&get_emulator().scheduler_stack);
}

void fiber_main() {
  get_emulator().running_fiber->switched_stack.enter(&get_emulator().scheduler_stack);
  for (;;) {
    (*get_emulator().body)();
    ++get_emulator().num_done_fibers;
    yield_fiber(FiberState::kDone);
  }
}

/// Does not return, so that AddressSanitizer would keep its frame poisoned.
[[gnu::no_sanitize_address]] void start_fiber(Fiber& fiber) {
  fiber.is_started = true;
  ucontext_t context{};
  getcontext(&context);
  context.uc_stack.ss_sp = fiber.stack.get();
  context.uc_stack.ss_size = kStackBytes;
  makecontext(&context, fiber_main, 0);
  setcontext(&context);
}

/// Runs a fiber until it yields.
[[gnu::noinline]] void run_fiber(Fiber& fiber) {
  get_emulator().running_fiber = &fiber;
  if (_setjmp(get_emulator().scheduler_context) != 0) {
    get_emulator().scheduler_stack.enter(nullptr);
    return;
  }
  get_emulator().scheduler_stack.leave(fiber.switched_stack);
  if (fiber.is_started) _longjmp(fiber.context, 1);
  start_fiber(fiber);
}

std::vector<size_t> make_thread_order(size_t threads) {
  std::vector<size_t> order(threads);
  std::iota(order.begin(), order.end(), 0);
  switch (settings().order) {
    case ThreadOrder::kForwards:
      break;
    case ThreadOrder::kBackwards:
      std::ranges::reverse(order);
      break;
    case ThreadOrder::kShuffled:
      std::ranges::shuffle(order, get_emulator().random_engine);
      break;
  }
  return order;
}

/// Resumes a warp's lanes once all that have not ended wait at a shuffle. Returns whether it did.
bool resume_warp(std::span<Fiber> lanes) {
  const auto is_at_shuffle = [](const Fiber& lane) { return lane.state == FiberState::kAtShuffle; };
  const auto is_at_shuffle_or_done = [&](const Fiber& lane) {
    return is_at_shuffle(lane) || lane.state == FiberState::kDone;
  };
  if (std::ranges::none_of(lanes, is_at_shuffle) || !std::ranges::all_of(lanes, is_at_shuffle_or_done)) return false;
  for (Fiber& lane : lanes) {
    if (!is_at_shuffle(lane)) continue;
    if (lane.source_lane >= lanes.size() || !is_at_shuffle(lanes[lane.source_lane]))
      throw std::runtime_error("a kernel shuffles from a lane that does not take part");
    lane.received_value = lanes[lane.source_lane].shuffle_value;
  }
  for (Fiber& lane : lanes) {
    if (is_at_shuffle(lane)) lane.state = FiberState::kReady;
  }
  return true;
}

/// Resumes all threads, which must wait at a barrier.
void resume_block(std::span<Fiber> fibers) {
  for (const Fiber& fiber : fibers) {
    if (fiber.state != FiberState::kAtBarrier) throw std::runtime_error("not all threads of a block reach a barrier");
  }
  for (Fiber& fiber : fibers) fiber.state = FiberState::kReady;
}

void assign_thread(Fiber& fiber, size_t thread_number, Dim3 block) {
  fiber.state = FiberState::kReady;
  const auto index = static_cast<unsigned>(thread_number);
  fiber.thread_index = {index % block.x, index / block.x % block.y, index / block.x / block.y};
}

void run_block(Emulator& current, std::span<Fiber> fibers) {
  for (const SharedMemoryRegion& shared : current.shared_memory_regions) poison_shared_memory(shared);
  for (size_t i = 0; i < fibers.size(); ++i) assign_thread(fibers[i], i, current.block_size);
  const auto order = make_thread_order(fibers.size());
  current.num_done_fibers = 0;
  for (size_t next = 0; current.num_done_fibers < fibers.size(); ++next) {
    while (next < order.size() && fibers[order[next]].state != FiberState::kReady) ++next;
    if (next == order.size()) {
      resume_block(fibers);
      next = 0;
    }
    const size_t first_lane_index = order[next] / kWarpSize * kWarpSize;
    run_fiber(fibers[order[next]]);
    // Restart the order, so that a warp runs to its next barrier before another warp starts.
    if (resume_warp(fibers.subspan(first_lane_index, std::min(kWarpSize, fibers.size() - first_lane_index))))
      next = SIZE_MAX;
  }
  // Throw here, because exceptions cannot leave a fiber.
  if (std::exchange(current.has_misaligned_access, false))
    throw std::runtime_error("a kernel uses a misaligned address");
}

}  // namespace

EmulationSettings& settings() {
  static EmulationSettings instance;
  return instance;
}

void run_blocks(Dim3 grid, Dim3 block, const std::function<void()>& body) {
  Emulator& current = get_emulator();
  const std::lock_guard lock(current.launch_mutex);
  current.body = &body;
  current.grid_size = grid;
  current.block_size = block;
  current.random_engine.seed(settings().seed);
  const size_t threads = size_t{block.x} * block.y * block.z;
  // Fibers of a launch that throws are suspended within the kernel and not used again.
  auto fibers = std::exchange(current.idle_fibers, {});
  if (fibers.size() < threads) fibers.resize(threads);
  const auto first_block_x =
      static_cast<unsigned>(std::max<int64_t>(0, int64_t{grid.x} - settings().max_trailing_blocks));
  for (current.block.z = 0; current.block.z < grid.z; ++current.block.z) {
    for (current.block.y = 0; current.block.y < grid.y; ++current.block.y) {
      for (current.block.x = first_block_x; current.block.x < grid.x; ++current.block.x)
        run_block(current, {fibers.data(), threads});
    }
  }
  current.idle_fibers = std::move(fibers);
}

Dim3 thread_index() {
  return get_emulator().running_fiber->thread_index;
}
Dim3 block_index() {
  return get_emulator().block;
}
Dim3 block_size() {
  return get_emulator().block_size;
}
Dim3 grid_size() {
  return get_emulator().grid_size;
}

void wait_at_barrier() {
  yield_fiber(FiberState::kAtBarrier);
}

uint64_t shuffle_lane(uint64_t value, unsigned lane) {
  Fiber& fiber = *get_emulator().running_fiber;
  fiber.shuffle_value = value;
  fiber.source_lane = lane;
  yield_fiber(FiberState::kAtShuffle);
  return fiber.received_value;
}

void report_misaligned_access() {
  get_emulator().has_misaligned_access = true;
}

void register_shared_memory(void* memory, int64_t bytes) {
  get_emulator().shared_memory_regions.push_back({memory, bytes});
  poison_shared_memory(get_emulator().shared_memory_regions.back());
}

}  // namespace vlmtrain::kernels::emulation

extern "C" [[gnu::visibility("default")]] vlmtrain::kernels::emulation::EmulationSettings*
vlmtrain_emulation_settings() {
  return &vlmtrain::kernels::emulation::settings();
}
