#include "vlmtrain/io/safetensors.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>

#include "io/checkpoint/safetensors_header.h"
#include "io/files/mapped_file.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::io {

SafetensorsFile::SafetensorsFile(std::filesystem::path path)
    : path_(std::move(path)), file_(std::make_shared<const MappedFile>(path_)) {
  SafetensorsHeader header = parse_safetensors_header(file_->text(), path_.string());
  names_ = std::move(header.names);
  tensors_ = std::move(header.tensors);
  metadata_ = std::move(header.metadata);
}

const TensorInfo& SafetensorsFile::info(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) {
    throw data_error("{} has no tensor {}; is it a checkpoint of another model?", path_.string(), name);
  }
  return it->second;
}

at::Tensor SafetensorsFile::tensor(const std::string& name) const {
  const TensorInfo& tensor = info(name);
  std::byte* data = file_->data() + tensor.offset_bytes;
  const at::Tensor view = at::from_blob(
      data, tensor.shape, [file = file_](void*) {}, at::TensorOptions().dtype(tensor.dtype));
  const bool is_aligned = reinterpret_cast<uintptr_t>(data) % c10::elementSize(tensor.dtype) == 0;
  return is_aligned ? view : view.clone();
}

void SafetensorsFile::release(const std::string& name) const {
  const TensorInfo& tensor = info(name);
  file_->release(static_cast<size_t>(tensor.offset_bytes), static_cast<size_t>(tensor.size_bytes));
}

OnDemandSafetensors::OnDemandSafetensors(std::filesystem::path path) : path_(std::move(path)) {
  constexpr size_t kInitialBytes = 4096;
  const auto header_bytes = static_cast<size_t>(compute_header_end(MappedFile(path_, 0, kInitialBytes).text()));
  const MappedFile header_mapping(path_, 0, std::max(kInitialBytes, header_bytes));
  auto header = parse_safetensors_header(header_mapping.text(), static_cast<int64_t>(header_mapping.file_bytes()),
                                         path_.string());
  names_ = std::move(header.names);
  tensors_ = std::move(header.tensors);
}

const TensorInfo& OnDemandSafetensors::info(const std::string& name) const {
  const auto it = tensors_.find(name);
  if (it == tensors_.end()) throw data_error("{} has no tensor {}", path_.string(), name);
  return it->second;
}

at::Tensor OnDemandSafetensors::tensor(const std::string& name) const {
  const TensorInfo& tensor = info(name);
  const auto bytes = static_cast<size_t>(tensor.size_bytes);
  const auto mapping = std::make_shared<const MappedFile>(path_, static_cast<size_t>(tensor.offset_bytes), bytes);
  if (mapping->size() != bytes) {
    throw data_error("{}: truncated: tensor {} is not all there; copy the file again", path_.string(), name);
  }
  const at::Tensor view = at::from_blob(
      mapping->data(), tensor.shape, [mapping](void*) {}, at::TensorOptions().dtype(tensor.dtype));
  const bool is_aligned = reinterpret_cast<uintptr_t>(mapping->data()) % c10::elementSize(tensor.dtype) == 0;
  return is_aligned ? view : view.clone();
}

}  // namespace vlmtrain::io
