#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>
#include <vector>

namespace vlmtrain::engine {

/// Scalars on their way from the device to the host: the copy is queued behind the work that makes them, and the host
/// waits only when it reads them, as a rule a step later.
class AsyncScalars {
 public:
  /// Queues the copy of fp32 [scalars].
  explicit AsyncScalars(const at::Tensor& scalars);
  /// Waits for the copy.
  std::vector<double> read();

 private:
  at::Tensor host_;  // fp32 [scalars], pinned if they come from a GPU
  std::optional<c10::Event> copy_done_;
};

}  // namespace vlmtrain::engine
