#pragma once

#include <ATen/record_function.h>

#include <memory>

#include "vlmtrain/memory/gpu_table.h"
#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::planner {

/// A recorder of the work of each ATen operation on the virtual GPU during the recorder's lifetime.
/// It predicts the operation's duration on the physical GPU:
///
/// max(FLOPs / (peak · efficiency), bytes / (bandwidth · efficiency), launches · time of an empty
/// kernel)
///
/// - Matmuls: the cuBLAS stub counts FLOPs. On Hopper, matrices with unaligned rows lower the
///   efficiency.
/// - Attention: four FLOPs per query-key pair and head element. A causal mask halves them. The
///   backward pass, which recomputes the scores, takes 2.5 times as many (Dao 2023, arXiv
///   2307.08691, section 4.1).
/// - Bytes: the sizes of inputs, outputs and tensor lists that are written in place.
///
/// See cost_recorder.cpp for the sources of the efficiencies. Operations may run on any thread.
class CostRecorder {
 public:
  /// Starts recording. `gpu` is the physical GPU, `dtype` the data type of matmuls. REQUIRES:
  /// is_on_virtual_gpu(), and no other recorder exists.
  CostRecorder(const memory::GpuSpec& gpu, at::ScalarType dtype);
  ~CostRecorder();
  CostRecorder(const CostRecorder&) = delete;
  CostRecorder& operator=(const CostRecorder&) = delete;

  /// Returns the costs since construction.
  StepCosts costs() const;

 private:
  at::CallbackHandle callback_handle_;
};

}  // namespace vlmtrain::planner
