// What a step costs, for a process of Python on the virtual GPU: the recorder that counts a plan's rehearsals
// (src/planner/cost_recorder.h), so that bench/beside_transformers.py counts both of its sides with the same code.
// A library for ctypes, which needs the PyTorch that it was built with; bench/peer_step.py loads it behind torch.

#include <cstdint>
#include <optional>

#include "planner/cost_recorder.h"
#include "vlmtrain/memory/gpu_table.h"
#include "vlmtrain/vgpu/counters.h"

namespace vlmtrain {
namespace {

struct StepCost {
  int64_t launches = 0;          ///< kernels and products of ATen's operations
  int64_t launches_on_card = 0;  ///< those of all that the process did
  double bytes_moved = 0;        ///< read and written by operations that are neither products nor attention
};

uint64_t launches_on_card() {
  vgpu::Counters counters;
  vgpu::attached()->read(&counters);
  return counters.launches + counters.products;
}

std::optional<planner::CostRecorder> recorder;
uint64_t launches_before = 0;

}  // namespace
}  // namespace vlmtrain

/// Starts to count. False where the process is not on the virtual GPU.
extern "C" bool vlmtrain_step_cost_begin() {
  using namespace vlmtrain;
  if (vgpu::attached() == nullptr) return false;
  recorder.emplace(*memory::find_gpu(vgpu::attached()->card()), at::kBFloat16);
  launches_before = launches_on_card();
  return true;
}

/// REQUIRES: vlmtrain_step_cost_begin() has returned true.
extern "C" void vlmtrain_step_cost_end(vlmtrain::StepCost* cost) {
  using namespace vlmtrain;
  const planner::Cost total = recorder->costs().total;
  cost->launches = total.launches;
  cost->launches_on_card = static_cast<int64_t>(launches_on_card() - launches_before);
  cost->bytes_moved = total.bytes_moved;
  recorder.reset();
}
