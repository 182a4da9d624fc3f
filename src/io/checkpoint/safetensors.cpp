#include "vlmtrain/io/safetensors.h"

#include <ATen/ops/from_blob.h>
#include <c10/core/Layout.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <tuple>
#include <utility>

#include "io/checkpoint/safetensors_header.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::io {
namespace {

/// Sorts tensors by element size, largest first, then by name. The data then begins at a multiple
/// of 8 bytes and every tensor at a multiple of its element size.
LazyTensors sort_by_element_size(LazyTensors tensors) {
  std::ranges::sort(tensors, {}, [](const LazyTensor& tensor) {
    return std::tuple(-static_cast<int64_t>(c10::elementSize(tensor.dtype)), std::string_view(tensor.name));
  });
  for (size_t i = 1; i < tensors.size(); ++i) {
    VLMTRAIN_CHECK(tensors[i - 1].name != tensors[i].name, "the tensor {} would be written twice", tensors[i].name);
  }
  return tensors;
}

void write_tensor(AtomicFile& file, const LazyTensor& tensor) {
  const at::Tensor value = tensor.materialize();
  VLMTRAIN_CHECK(value.layout() == c10::Layout::Strided, "only dense tensors can be written");
  VLMTRAIN_CHECK(value.scalar_type() == tensor.dtype && value.sizes() == at::IntArrayRef(tensor.shape),
                 "the tensor {} differs from its declared dtype or shape", tensor.name);
  const at::Tensor contiguous_tensor = value.detach().cpu().contiguous();
  file.write({static_cast<const char*>(contiguous_tensor.const_data_ptr()), contiguous_tensor.nbytes()});
}

}  // namespace

SafetensorsFile::SafetensorsFile(std::filesystem::path path)
    : path_(std::move(path)), file_(std::make_shared<const MappedFile>(path_)) {
  SafetensorsHeader header = parse_safetensors_header(file_->text(), path_.string());
  names_ = std::move(header.names);
  tensor_infos_ = std::move(header.tensors);
  metadata_ = std::move(header.metadata);
}

const TensorInfo& SafetensorsFile::info(const std::string& name) const {
  const auto it = tensor_infos_.find(name);
  if (it == tensor_infos_.end()) {
    throw make_missing_tensor_error(path_, name);
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
  file_->release_pages(static_cast<size_t>(tensor.offset_bytes), static_cast<size_t>(tensor.size_bytes));
}

OnDemandSafetensorsFile::OnDemandSafetensorsFile(std::filesystem::path path) : path_(std::move(path)) {
  constexpr size_t kInitialMappingBytes = 4096;  // one page; contains the length of the header
  const auto header_bytes = static_cast<size_t>(compute_header_end(MappedFile(path_, 0, kInitialMappingBytes).text()));
  const MappedFile header_mapping(path_, 0, std::max(kInitialMappingBytes, header_bytes));
  auto header = parse_safetensors_header(header_mapping.text(), static_cast<int64_t>(header_mapping.file_bytes()),
                                         path_.string());
  names_ = std::move(header.names);
  tensor_infos_ = std::move(header.tensors);
}

const TensorInfo& OnDemandSafetensorsFile::info(const std::string& name) const {
  const auto it = tensor_infos_.find(name);
  if (it == tensor_infos_.end()) throw make_missing_tensor_error(path_, name);
  return it->second;
}

at::Tensor OnDemandSafetensorsFile::tensor(const std::string& name) const {
  const TensorInfo& tensor = info(name);
  const auto bytes = static_cast<size_t>(tensor.size_bytes);
  const auto tensor_mapping =
      std::make_shared<const MappedFile>(path_, static_cast<size_t>(tensor.offset_bytes), bytes);
  if (tensor_mapping->size() != bytes) {
    throw data_error("{}: truncated: tensor {} is incomplete; copy the file again", path_.string(), name);
  }
  const at::Tensor view = at::from_blob(
      tensor_mapping->data(), tensor.shape, [tensor_mapping](void*) {}, at::TensorOptions().dtype(tensor.dtype));
  const bool is_aligned = reinterpret_cast<uintptr_t>(tensor_mapping->data()) % c10::elementSize(tensor.dtype) == 0;
  return is_aligned ? view : view.clone();
}

int64_t LazyTensor::bytes() const {
  return std::accumulate(shape.begin(), shape.end(), static_cast<int64_t>(c10::elementSize(dtype)),
                         std::multiplies<>());
}

LazyTensors make_lazy_tensors(const NamedTensors& tensors) {
  LazyTensors lazy_tensors;
  for (const auto& [name, tensor] : tensors) {
    const auto shared_tensor = std::make_shared<at::Tensor>(tensor);
    lazy_tensors.push_back({.name = name,
                            .dtype = tensor.scalar_type(),
                            .shape = tensor.sizes().vec(),
                            .materialize = [shared_tensor] { return *shared_tensor; },
                            .on_written = [shared_tensor] { shared_tensor->reset(); }});
  }
  return lazy_tensors;
}

void write_safetensors(const std::filesystem::path& path, const LazyTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const LazyTensors sorted_tensors = sort_by_element_size(tensors);
  std::vector<std::pair<std::string, TensorInfo>> entries;
  int64_t data_bytes = 0;
  for (const LazyTensor& tensor : sorted_tensors) {
    entries.emplace_back(tensor.name, TensorInfo{tensor.dtype, tensor.shape, 0, tensor.bytes()});
    data_bytes += tensor.bytes();
  }
  const std::string header = format_safetensors_header(entries, metadata);
  AtomicFile file(path, static_cast<int64_t>(header.size()) + data_bytes);
  file.write(header);
  for (const LazyTensor& tensor : sorted_tensors) {
    write_tensor(file, tensor);
    if (tensor.on_written) tensor.on_written();
  }
  file.commit();
}

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  write_safetensors(path, make_lazy_tensors(tensors), metadata);
}

}  // namespace vlmtrain::io
