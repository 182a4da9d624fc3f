#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "nn/attention_kernel.h"

namespace vlmtrain::nn {

/// What the kernels of attention gave in the first run of a block that is run again: the second run takes it as it is.
class KeptAttention {
 public:
  enum class Run : uint8_t { kFirst, kSecond };

  /// While it lives, attend() on this thread keeps in, or takes from, `results`. Null: it does neither.
  class Scope {
   public:
    Scope(KeptAttention* results, Run run);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    KeptAttention* outer_;
    Run outer_run_;
  };

 private:
  friend at::Tensor attend(const std::shared_ptr<const AttentionKernel>& kernel, const at::Tensor& query,
                           const at::Tensor& key, const at::Tensor& value);

  std::vector<std::vector<at::Tensor>> calls_;
  size_t next_ = 0;
};

/// The kernel's output.
at::Tensor attend(const std::shared_ptr<const AttentionKernel>& kernel, const at::Tensor& query, const at::Tensor& key,
                  const at::Tensor& value);

}  // namespace vlmtrain::nn
