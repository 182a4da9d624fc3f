#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::io {

/// A tensor that is computed when it is written, so that host memory has one tensor at a time.
struct LazyTensor {
  std::string name;
  c10::ScalarType dtype;
  std::vector<int64_t> shape;
  std::function<at::Tensor()> materialize;  ///< returns a tensor of this dtype and shape on any device; called once
  std::function<void()> on_written = {};    ///< called once after the tensor is written; may be empty

  int64_t bytes() const;
};

using LazyTensors = std::vector<LazyTensor>;

/// Wraps existing tensors. Each is released after it is written.
LazyTensors make_lazy_tensors(const NamedTensors& tensors);

/// Writes tensors as the overload for NamedTensors in io/safetensors.h does.
void write_safetensors(const std::filesystem::path& path, const LazyTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
/// Writes tensors as the overload for NamedTensors in io/checkpoint.h does.
void write_checkpoint_tensors(const std::filesystem::path& folder, const LazyTensors& tensors, int64_t max_shard_bytes);

}  // namespace vlmtrain::io
