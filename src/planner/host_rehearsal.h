#pragma once

#include "planner/rehearsed_run.h"
#include "vlmtrain/memory/meta_memory.h"
#include "vlmtrain/memory/trace.h"
#include "vlmtrain/planner/rehearsal.h"

namespace vlmtrain::planner {

/// Optimizer steps of a job on the CPU, without values: on LibTorch's meta device, in this process. One at a time.
class HostRehearsal {
 public:
  /// Builds the model. Throws as rehearse() does.
  explicit HostRehearsal(const Job& job);

  /// One step of these samples. Peaks are the bytes of the tensors that live at once, those of operations' own
  /// included; `reserved` is the same. Always with detail, never with costs.
  Outcome step(const Choices& choices, const std::vector<SampleGroup>& samples);

 private:
  memory::MetaMemory memory_;
  memory::AllocationTrace trace_;
  RehearsedRun run_;
};

}  // namespace vlmtrain::planner
