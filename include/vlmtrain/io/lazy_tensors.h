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

/// A tensor that is made when its turn comes to be written, so that host memory holds one at a time.
struct LazyTensor {
  std::string name;
  c10::ScalarType dtype;
  std::vector<int64_t> shape;
  std::function<at::Tensor()> materialize;  ///< of that type and shape, on any device; called once
  std::function<void()> on_written = {};    ///< called once it is written; may be empty

  int64_t bytes() const;
};

using LazyTensors = std::vector<LazyTensor>;

/// The same tensors, which are there already. Each is let go once it is written.
LazyTensors make_lazy_tensors(const NamedTensors& tensors);

/// As the functions of NamedTensors in io/safetensors.h and io/checkpoint.h.
void write_safetensors(const std::filesystem::path& path, const LazyTensors& tensors,
                       const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
void write_checkpoint_tensors(const std::filesystem::path& folder, const LazyTensors& tensors, int64_t max_shard_bytes);

}  // namespace vlmtrain::io
