#include "models/qwen2_vl/host_indices.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "vlmtrain/memory/copy.h"

namespace vlmtrain::models::qwen2_vl {

at::Tensor host_indices(const std::vector<int64_t>& values, at::Device device) {
  at::Tensor indices = at::empty({std::ssize(values)}, at::kLong);
  std::copy(values.begin(), values.end(), indices.mutable_data_ptr<int64_t>());
  return memory::copy_to_device(indices, device);
}

}  // namespace vlmtrain::models::qwen2_vl
