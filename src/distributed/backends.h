#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include "vlmtrain/distributed/collectives.h"

namespace vlmtrain::distributed {

struct Collectives::Backends {
  c10::intrusive_ptr<c10d::Backend> host{};
  c10::intrusive_ptr<c10d::Backend> device{};

  c10d::Backend& of(const at::Tensor& values) const { return values.is_cpu() ? *host : *device; }
};

}  // namespace vlmtrain::distributed
