#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "vlmtrain/distributed/collectives.h"

namespace vlmtrain::distributed {

struct Collectives::Backends {
  c10::intrusive_ptr<c10d::Backend> host{};
  c10::intrusive_ptr<c10d::Backend> device{};

  c10d::Backend& select(const at::Tensor& tensor) const { return tensor.is_cpu() ? *host : *device; }
};

}  // namespace vlmtrain::distributed
