#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "nn/attention/attention_kernel.h"

namespace vlmtrain::nn {

/// The outputs of the attention kernels in the first run of a checkpointed block. The second run
/// reuses them instead of running the kernels again.
class SelectiveCheckpoint {
 public:
  enum class Mode : uint8_t { kRecord, kReplay };

  /// A guard during which attend() on this thread records into, or replays from, `checkpoint`.
  /// Null: neither.
  class Scope {
   public:
    Scope(SelectiveCheckpoint* checkpoint, Mode mode);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    SelectiveCheckpoint* outer_;
    Mode outer_mode_;
  };

 private:
  friend at::Tensor attend(const std::shared_ptr<const AttentionKernel>& kernel, const at::Tensor& query,
                           const at::Tensor& key, const at::Tensor& value);

  std::vector<std::vector<at::Tensor>> outputs_;
  size_t next_ = 0;
};

/// Returns the output of `kernel`. Records its gradient where gradients are enabled.
at::Tensor attend(const std::shared_ptr<const AttentionKernel>& kernel, const at::Tensor& query, const at::Tensor& key,
                  const at::Tensor& value);

}  // namespace vlmtrain::nn
