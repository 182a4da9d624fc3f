#pragma once

#include <ATen/record_function.h>

#include <memory>

#include "vlmtrain/memory/gpu_table.h"
#include "vlmtrain/planner/dry_run.h"
#include "vlmtrain/vgpu/counters.h"

namespace vlmtrain::planner {

/// Counts the work of every ATen operation that launches kernels on the virtual card while it lives, and predicts the
/// time that it would take on the real one, each operation by itself:
///
///     max(operations / (peak · efficiency), bytes / (bandwidth · efficiency), launches · time of the shortest kernel)
///
/// Operations of products come from the stand-in of cuBLAS, those of attention from the sizes of its inputs (four for
/// each pair of query and key and each element of a head, half of them with a causal mask; 2.5 times that in the
/// backward pass, which computes the scores again: Dao 2023, arXiv 2307.08691, section 4.1). Bytes are those of the
/// tensors that come in and go out, and of lists that are written in place. On Hopper cards products whose matrices do
/// not have all rows at 16 bytes have a lower efficiency. cost_recorder.cpp says where the efficiencies come from.
class CostRecorder {
 public:
  /// `dtype` is what products compute in.
  CostRecorder(const memory::Gpu& gpu, at::ScalarType dtype);
  ~CostRecorder();
  CostRecorder(const CostRecorder&) = delete;
  CostRecorder& operator=(const CostRecorder&) = delete;

  StepCosts costs() const;

 private:
  at::CallbackHandle handle_;
};

}  // namespace vlmtrain::planner
