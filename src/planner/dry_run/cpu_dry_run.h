#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>

#include "planner/dry_run/dry_run_session.h"
#include "vlmtrain/memory/allocation_trace.h"
#include "vlmtrain/memory/meta_memory.h"
#include "vlmtrain/planner/dry_run.h"

namespace vlmtrain::planner {

/// A CPU job whose optimizer steps run on LibTorch's meta device in this process: tensors have no
/// values, but their memory is counted. REQUIRES: one instance at a time per process. Not
/// thread-safe.
class CpuDryRun {
 public:
  enum class Detail { kNone, kPeakByComponent };  ///< kPeakByComponent is several times slower

  /// Builds the model and, `with_training`, the optimizer. Throws the exceptions of build_model().
  explicit CpuDryRun(const Job& job, Detail detail = Detail::kNone, bool with_training = true);

  /// Runs one step. REQUIRES: constructed with_training. In the result:
  /// - StepPeaks::allocated_bytes: live tensors, temporaries of operations included.
  /// - StepPeaks::reserved_bytes: the same plus an upper bound of malloc's free blocks. malloc
  ///   returns blocks below memory::kLargeBlockBytes only from the end of the heap. In the worst
  ///   case, it keeps the peak of these blocks during the step.
  /// - DryRunDetail::peak is set with Detail::kPeakByComponent only; costs are not set.
  DryRunResult step(const StepConfig& step_config, const std::vector<SampleGroup>& samples);
  DryRunResult step(const engine::StepLayout& layout, const std::vector<SampleGroup>& samples);

  /// Runs an evaluation batch and returns its peaks, counted like those of a step.
  StepPeaks evaluate(const EvaluationBatch& batch);

  /// Returns the bytes of live tensors, which between steps are weights, gradients and optimizer
  /// state.
  int64_t persistent_bytes() const { return memory_.live_bytes(); }
  int64_t num_vision_blocks() const { return session_.model().num_vision_blocks(); }
  int64_t num_language_blocks() const { return session_.model().num_language_blocks(); }

 private:
  memory::MetaMemoryTracker memory_;
  std::unique_ptr<memory::AllocationTrace> trace_;
  DryRunSession session_;
};

/// Registers meta kernels for operations whose CPU kernels have no meta counterpart in LibTorch.
/// They allocate the outputs and temporaries of the CPU kernels. Later calls do nothing.
/// Thread-safe.
void register_cpu_meta_kernels();

/// Returns how many operands of a matmul oneDNN or MKL copies into another layout during the
/// matmul. The number depends on the CPU's instruction set. The first call measures it by running a
/// matmul. Returns 0 for types other than fp32 and bf16. Thread-safe.
int64_t get_num_packed_operands(at::ScalarType dtype);

}  // namespace vlmtrain::planner
