#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace vlmtrain::engine {

/// Of one step.
struct Gradients {
  double loss = 0;
  std::map<std::string, at::Tensor> by_name;
};

}  // namespace vlmtrain::engine
