#pragma once

#include <ATen/record_function.h>

#include <memory>

#include "vlmtrain/memory/gpu_table.h"
#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::planner {

/// A recorder of the work of each ATen operation on the virtual GPU during its lifetime. It
/// predicts the operation's time on the physical GPU:
///
/// max(operations / (peak · efficiency), bytes / (bandwidth · efficiency), launches · time of an
/// empty kernel)
///
/// The cuBLAS stub counts the operations of matmuls. Operations of attention follow from the sizes
/// of its inputs: four per query-key pair and head element, half of that with a causal mask, 2.5
/// times that in the backward pass, which recomputes the scores (Dao 2023, arXiv 2307.08691,
/// section 4.1). Bytes are those of inputs, outputs and lists that are written in place. On Hopper,
/// matmuls of matrices with unaligned rows have a lower efficiency. See cost_recorder.cpp for the
/// sources of the efficiencies.
class CostRecorder {
 public:
  /// Starts recording. `dtype` is the data type of matmuls. REQUIRES: no other recorder lives.
  CostRecorder(const memory::Gpu& gpu, at::ScalarType dtype);
  ~CostRecorder();
  CostRecorder(const CostRecorder&) = delete;
  CostRecorder& operator=(const CostRecorder&) = delete;

  StepCosts costs() const;

 private:
  at::CallbackHandle handle_;
};

}  // namespace vlmtrain::planner
