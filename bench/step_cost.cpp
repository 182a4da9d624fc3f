// Counts the cost of a step of a Python process on the virtual GPU with the planner's recorder
// (src/planner/dry_run/cost_recorder.h), so that bench/compare_transformers.py counts both sides with the
// same code. A library for ctypes that needs the PyTorch it was built with; bench/peer_step.py
// loads it after torch.

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>

#include "planner/dry_run/cost_recorder.h"
#include "vlmtrain/memory/gpu_table.h"
#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain {
namespace {

struct StepCost {
  int64_t kernel_launches = 0;  ///< kernels and matrix products of ATen operations
  int64_t launches_on_gpu = 0;  ///< all kernels and matrix products of the process
  double bytes_moved = 0;       ///< read and written by operations other than matrix products and attention
};

uint64_t launches_on_gpu() {
  vgpu::GpuCounters counters;
  vgpu::find_virtual_gpu_interface()->read_counters(&counters);
  return counters.num_launches + counters.num_matmuls;
}

std::optional<planner::CostRecorder> recorder;
uint64_t initial_launches = 0;

}  // namespace
}  // namespace vlmtrain

/// Starts to count. Returns false if the process is not on the virtual GPU.
extern "C" bool vlmtrain_step_cost_begin() {
  using namespace vlmtrain;
  if (vgpu::find_virtual_gpu_interface() == nullptr) return false;
  recorder.emplace(*memory::find_gpu_spec(vgpu::find_virtual_gpu_interface()->gpu_name()), at::kBFloat16);
  initial_launches = launches_on_gpu();
  return true;
}

/// Stops counting. REQUIRES: vlmtrain_step_cost_begin() returned true.
extern "C" void vlmtrain_step_cost_end(vlmtrain::StepCost* cost) {
  using namespace vlmtrain;
  const planner::OperationCost total = recorder->costs().total;
  cost->kernel_launches = total.num_kernel_launches;
  cost->launches_on_gpu = static_cast<int64_t>(launches_on_gpu() - initial_launches);
  cost->bytes_moved = total.bytes_moved;
  recorder.reset();
}
