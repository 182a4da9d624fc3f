#include "vlmtrain/io/single_tensors.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "io/mapped_file.h"
#include "io/safetensors_header.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::io {

SingleTensors::SingleTensors(std::filesystem::path path) : path_(std::move(path)) {
  constexpr size_t kStart = 4096;
  const auto bytes = static_cast<size_t>(bytes_with_header(MappedFile(path_, 0, kStart).text()));
  const MappedFile head(path_, 0, std::max(kStart, bytes));
  auto header = parse_safetensors_header(head.text(), static_cast<int64_t>(head.file_bytes()), path_.string());
  names_ = std::move(header.names);
  tensors_ = std::move(header.tensors);
}

const TensorInfo& SingleTensors::info(const std::string& name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) throw data_error("{} has no tensor {}", path_.string(), name);
  return found->second;
}

at::Tensor SingleTensors::tensor(const std::string& name) const {
  const TensorInfo& tensor = info(name);
  const auto bytes = static_cast<size_t>(tensor.size_bytes);
  const auto mapped = std::make_shared<const MappedFile>(path_, static_cast<size_t>(tensor.offset_bytes), bytes);
  if (mapped->size() != bytes) {
    throw data_error("{}: truncated: tensor {} is not all there; copy the file again", path_.string(), name);
  }
  const at::Tensor view = at::from_blob(
      mapped->data(), tensor.shape, [mapped](void*) {}, at::TensorOptions().dtype(tensor.dtype));
  const bool aligned = reinterpret_cast<uintptr_t>(mapped->data()) % c10::elementSize(tensor.dtype) == 0;
  return aligned ? view : view.clone();
}

}  // namespace vlmtrain::io
