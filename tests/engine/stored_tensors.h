#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/nn/weights/split_values.h"

namespace vlmtrain {

/// Returns the tensors of Optimizer::state() or master_weights(). They are not copies, unless they are
/// stored in halves.
inline std::vector<std::pair<std::string, at::Tensor>> read_tensors(
    const std::vector<std::pair<std::string, nn::StoredTensor>>& stored_tensors) {
  std::vector<std::pair<std::string, at::Tensor>> tensors;
  tensors.reserve(stored_tensors.size());
  for (const auto& [name, tensor] : stored_tensors) tensors.emplace_back(name, tensor.read());
  return tensors;
}

/// Returns copies of the tensors by name.
inline std::map<std::string, at::Tensor> copy_tensors(
    const std::vector<std::pair<std::string, nn::StoredTensor>>& stored_tensors) {
  std::map<std::string, at::Tensor> copies;
  for (const auto& [name, tensor] : read_tensors(stored_tensors)) copies[name] = tensor.clone();
  return copies;
}

}  // namespace vlmtrain
