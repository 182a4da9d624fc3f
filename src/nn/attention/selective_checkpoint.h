#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "nn/attention_kernel.h"

namespace vlmtrain::nn {

/// What the kernels of attention gave in the first run of a block that is run again: the second run takes it as it is.
class SelectiveCheckpoint {
 public:
  enum class Mode : uint8_t { kRecord, kReplay };

  /// While it lives, attend() on this thread keeps in, or takes from, `checkpoint`. Null: it does neither.
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

/// The kernel's output.
at::Tensor attend(const std::shared_ptr<const AttentionKernel>& kernel, const at::Tensor& query, const at::Tensor& key,
                  const at::Tensor& value);

}  // namespace vlmtrain::nn
