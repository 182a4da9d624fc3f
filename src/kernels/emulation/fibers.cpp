#include "kernels/emulation/fibers.h"

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

#include "kernels/emulation/settings.h"

namespace vlmtrain::kernels::emulation {

namespace {

constexpr size_t kStackBytes = size_t{64} << 10;
constexpr size_t kWarp = 32;

enum class State { kReady, kAtShuffle, kAtBarrier, kDone };

struct Fiber {
  ucontext_t context{};
  std::unique_ptr<std::byte[]> stack = std::make_unique<std::byte[]>(kStackBytes);
  State state = State::kReady;
  Size3 thread{};
  uint64_t offered = 0;
  unsigned wanted_lane = 0;
  uint64_t taken = 0;
};

struct SharedMemory {
  void* memory;
  int64_t bytes;
};

/// One block at a time in the process.
struct Machine {
  std::mutex one_launch;
  ucontext_t scheduler{};
  std::vector<Fiber> fibers;
  Fiber* running = nullptr;
  size_t done = 0;  // of the block's
  bool is_misaligned = false;
  const std::function<void()>* body = nullptr;
  Size3 block, grid_size, block_size;
  std::vector<SharedMemory> shared;
  std::mt19937_64 random;
};

Machine& machine() {
  static Machine instance;
  return instance;
}

void fiber_main() {
  (*machine().body)();
  machine().running->state = State::kDone;
  ++machine().done;
}

void poison(const SharedMemory& shared) {
  std::memset(shared.memory, 0xff, static_cast<size_t>(shared.bytes));
}

void yield(State state) {
  Machine& all = machine();
  Fiber& self = *all.running;
  self.state = state;
  swapcontext(&self.context, &all.scheduler);
}

std::vector<size_t> order_of_threads(size_t threads) {
  std::vector<size_t> order(threads);
  std::iota(order.begin(), order.end(), 0);
  switch (settings().order) {
    case Order::kForwards:
      break;
    case Order::kBackwards:
      std::ranges::reverse(order);
      break;
    case Order::kShuffled:
      std::ranges::shuffle(order, machine().random);
      break;
  }
  return order;
}

/// Lets the lanes of a warp go on that have all come to a shuffle.
bool release_warp(std::span<Fiber> lanes) {
  const auto waits = [](const Fiber& lane) { return lane.state == State::kAtShuffle; };
  const auto waits_or_done = [&](const Fiber& lane) { return waits(lane) || lane.state == State::kDone; };
  if (std::ranges::none_of(lanes, waits) || !std::ranges::all_of(lanes, waits_or_done)) return false;
  for (Fiber& lane : lanes) {
    if (!waits(lane)) continue;
    if (lane.wanted_lane >= lanes.size() || !waits(lanes[lane.wanted_lane]))
      throw std::runtime_error("a kernel takes from a lane of its warp that does not offer");
    lane.taken = lanes[lane.wanted_lane].offered;
  }
  for (Fiber& lane : lanes) {
    if (waits(lane)) lane.state = State::kReady;
  }
  return true;
}

void release_block(std::span<Fiber> fibers) {
  for (const Fiber& fiber : fibers) {
    if (fiber.state != State::kAtBarrier) throw std::runtime_error("a barrier that not all threads of a block come to");
  }
  for (Fiber& fiber : fibers) fiber.state = State::kReady;
}

void start(Fiber& fiber, size_t number, ucontext_t& scheduler, Size3 block) {
  fiber.state = State::kReady;
  const auto index = static_cast<unsigned>(number);
  fiber.thread = {index % block.x, index / block.x % block.y, index / block.x / block.y};
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = &scheduler;
  makecontext(&fiber.context, fiber_main, 0);
}

void run_block(Machine& all, std::span<Fiber> fibers) {
  for (const SharedMemory& shared : all.shared) poison(shared);
  for (size_t i = 0; i < fibers.size(); ++i) start(fibers[i], i, all.scheduler, all.block_size);
  const auto order = order_of_threads(fibers.size());
  all.done = 0;
  for (size_t next = 0; all.done < fibers.size(); ++next) {
    while (next < order.size() && fibers[order[next]].state != State::kReady) ++next;
    if (next == order.size()) {
      release_block(fibers);
      next = 0;
    }
    const size_t first_lane = order[next] / kWarp * kWarp;
    all.running = &fibers[order[next]];
    swapcontext(&all.scheduler, &all.running->context);
    // Begins anew, so that a warp runs to its next barrier before another begins.
    if (release_warp(fibers.subspan(first_lane, std::min(kWarp, fibers.size() - first_lane)))) next = SIZE_MAX;
  }
  // Not where it happened, since exceptions do not leave a fiber.
  if (std::exchange(all.is_misaligned, false)) throw std::runtime_error("a kernel uses a misaligned address");
}

}  // namespace

Settings& settings() {
  static Settings instance;
  return instance;
}

void run_blocks(Size3 grid, Size3 block, const std::function<void()>& body) {
  Machine& all = machine();
  const std::lock_guard lock(all.one_launch);
  all.body = &body;
  all.grid_size = grid;
  all.block_size = block;
  all.random.seed(settings().seed);
  const size_t threads = size_t{block.x} * block.y * block.z;
  if (all.fibers.size() < threads) all.fibers.resize(threads);
  const std::span fibers(all.fibers.data(), threads);
  const auto first_x = static_cast<unsigned>(std::max<int64_t>(0, int64_t{grid.x} - settings().last_blocks));
  for (all.block.z = 0; all.block.z < grid.z; ++all.block.z) {
    for (all.block.y = 0; all.block.y < grid.y; ++all.block.y) {
      for (all.block.x = first_x; all.block.x < grid.x; ++all.block.x) run_block(all, fibers);
    }
  }
}

Size3 thread_index() {
  return machine().running->thread;
}
Size3 block_index() {
  return machine().block;
}
Size3 block_size() {
  return machine().block_size;
}
Size3 grid_size() {
  return machine().grid_size;
}

void wait_for_block() {
  yield(State::kAtBarrier);
}

uint64_t exchange(uint64_t value, unsigned lane) {
  Fiber& self = *machine().running;
  self.offered = value;
  self.wanted_lane = lane;
  yield(State::kAtShuffle);
  return self.taken;
}

void note_misaligned() {
  machine().is_misaligned = true;
}

void declare_shared(void* memory, int64_t bytes) {
  machine().shared.push_back({memory, bytes});
  poison(machine().shared.back());
}

}  // namespace vlmtrain::kernels::emulation

extern "C" [[gnu::visibility("default")]] vlmtrain::kernels::emulation::Settings* vlmtrain_emulation_settings() {
  return &vlmtrain::kernels::emulation::settings();
}
