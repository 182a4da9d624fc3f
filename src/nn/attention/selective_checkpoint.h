#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "nn/attention/attention_kernel.h"

namespace vlmtrain::nn {

/// The outputs of the attention kernels in the first run of a checkpointed block. The second run
/// reuses them, in the same order, instead of running the kernels again. Not thread-safe.
class SelectiveCheckpoint {
 public:
  /// kRecord in the first run of the block, kReplay in the second.
  enum class Mode : uint8_t { kRecord, kReplay };

  /// A guard. During its lifetime attend() on this thread records into, or replays from,
  /// `checkpoint`, which must outlive the guard. If null, attend() does neither. Scopes nest.
  class Scope {
   public:
    Scope(SelectiveCheckpoint* checkpoint, Mode mode);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    SelectiveCheckpoint* outer_checkpoint_;
    Mode outer_mode_;
  };

 private:
  friend at::Tensor attend(const std::shared_ptr<const AttentionKernel>& kernel, const at::Tensor& query,
                           const at::Tensor& key, const at::Tensor& value);

  std::vector<std::vector<at::Tensor>> recorded_outputs_;  // AttentionKernel::forward() of each call
  size_t next_call_index_ = 0;                             // next call to replay
};

/// Returns the output of `kernel`, run or replayed according to the thread's
/// SelectiveCheckpoint::Scope. Records its gradient if gradients are enabled. Throws InternalError
/// if a replay calls attention more often than the first run.
at::Tensor attend(const std::shared_ptr<const AttentionKernel>& kernel, const at::Tensor& query, const at::Tensor& key,
                  const at::Tensor& value);

}  // namespace vlmtrain::nn
