#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <memory>

#include "planner/dry_run/dry_run_session.h"
#include "vlmtrain/memory/meta_memory.h"
#include "vlmtrain/memory/trace.h"
#include "vlmtrain/planner/dry_run.h"

namespace vlmtrain::planner {

/// Optimizer steps of a job on the CPU, without values: on LibTorch's meta device, in this process. One at a time.
class CpuDryRun {
 public:
  enum class Detail { kNone, kPeakByComponent };  ///< which takes a few times as long

  /// Builds the model; `with_training` as DryRunSession's. Throws as dry_run() does.
  explicit CpuDryRun(const Job& job, Detail detail = Detail::kNone, bool with_training = true);

  /// One step of these samples. Peaks are the bytes of the tensors that live at once, those of operations' own
  /// included; `reserved` is with what malloc may hold free at that moment: it gives blocks below
  /// memory::kLargeBlockBytes back only where no other lies behind them, so that at worst all that lived at once during
  /// the step beside what lives on is kept. DryRunDetail::peak is only there if it was asked for; never with costs.
  DryRunResult step(const StepConfig& step_config, const std::vector<SampleGroup>& samples);
  DryRunResult step(const engine::StepLayout& layout, const std::vector<SampleGroup>& samples);

  /// The peaks of an evaluation, counted as those of a step.
  StepPeaks evaluate(const EvaluationBatch& batch);

  /// What lives between steps: weights, gradients, optimizer states.
  int64_t persistent_bytes() const { return memory_.live_bytes(); }
  int64_t vision_blocks() const { return run_.model().vision_blocks(); }
  int64_t language_blocks() const { return run_.model().language_blocks(); }

 private:
  memory::MetaMemoryTracker memory_;
  std::unique_ptr<memory::AllocationTrace> trace_;
  DryRunSession run_;
};

/// Tells LibTorch what tensors some of its CPU kernels make, results and what they need meanwhile: for a rehearsal on
/// the meta device, which it has no such functions for. Once in a process; further calls do nothing.
void register_cpu_meta_kernels();

/// How many factors of a product of matrices the CPU's library copies into a layout that its kernels want, for as long
/// as the product is made: that depends on the processor's instructions, and is found by making one.
int64_t num_packed_operands(at::ScalarType dtype);

}  // namespace vlmtrain::planner
