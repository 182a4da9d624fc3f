#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>

#include "planner/dry_run/dry_run_session.h"
#include "vlmtrain/memory/allocation_trace.h"
#include "vlmtrain/memory/meta_memory.h"
#include "vlmtrain/planner/dry_run.h"

namespace vlmtrain::planner {

/// Optimizer steps of a CPU job without values, on LibTorch's meta device in this process. One
/// instance at a time. Not thread-safe.
class CpuDryRun {
 public:
  enum class Detail { kNone, kPeakByComponent };  ///< kPeakByComponent is several times slower

  /// Builds the model. `with_training` as for DryRunSession. Throws the exceptions of dry_run().
  explicit CpuDryRun(const Job& job, Detail detail = Detail::kNone, bool with_training = true);

  /// Runs one step. Peaks are the bytes of live tensors, temporaries of operations included.
  /// Reserved bytes add malloc's free blocks: malloc returns blocks below memory::kLargeBlockBytes
  /// only from the end of the heap, so that in the worst case all bytes that lived at once during
  /// the step stay allocated. DryRunDetail::peak needs Detail::kPeakByComponent. There are no
  /// costs.
  DryRunResult step(const StepConfig& step_config, const std::vector<SampleGroup>& samples);
  DryRunResult step(const engine::StepLayout& layout, const std::vector<SampleGroup>& samples);

  /// Runs an evaluation batch and returns its peaks, counted like those of a step.
  StepPeaks evaluate(const EvaluationBatch& batch);

  /// Returns the bytes that live between steps: weights, gradients, optimizer state.
  int64_t persistent_bytes() const { return memory_.live_bytes(); }
  int64_t vision_blocks() const { return run_.model().vision_blocks(); }
  int64_t language_blocks() const { return run_.model().language_blocks(); }

 private:
  memory::MetaMemoryTracker memory_;
  std::unique_ptr<memory::AllocationTrace> trace_;
  DryRunSession run_;
};

/// Registers meta functions for CPU kernels that LibTorch has none for. They allocate the outputs
/// and temporaries of the kernels. Later calls do nothing.
void register_cpu_meta_kernels();

/// Returns how many operands of a matmul the CPU's library repacks during the matmul. It depends on
/// the instruction set and is found by running one.
int64_t num_packed_operands(at::ScalarType dtype);

}  // namespace vlmtrain::planner
