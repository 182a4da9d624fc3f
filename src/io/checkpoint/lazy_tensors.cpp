#include "vlmtrain/io/lazy_tensors.h"

#include <c10/core/Layout.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <tuple>

#include "io/checkpoint/safetensors_header.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::io {
namespace {

LazyTensors sort_for_alignment(LazyTensors tensors) {
  std::ranges::sort(tensors, {}, [](const LazyTensor& tensor) {
    return std::tuple(-static_cast<int64_t>(c10::elementSize(tensor.dtype)), std::string_view(tensor.name));
  });
  for (size_t i = 1; i < tensors.size(); ++i) {
    VLMTRAIN_CHECK(tensors[i - 1].name != tensors[i].name, "the tensor {} is to be written twice", tensors[i].name);
  }
  return tensors;
}

void write_tensor(AtomicFile& file, const LazyTensor& tensor) {
  const at::Tensor value = tensor.materialize();
  VLMTRAIN_CHECK(value.layout() == c10::Layout::Strided, "only dense tensors can be written");
  VLMTRAIN_CHECK(value.scalar_type() == tensor.dtype && value.sizes() == at::IntArrayRef(tensor.shape),
                 "the tensor {} was made otherwise than announced", tensor.name);
  const at::Tensor contiguous = value.detach().cpu().contiguous();
  file.write({static_cast<const char*>(contiguous.const_data_ptr()), contiguous.nbytes()});
}

}  // namespace

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
  const LazyTensors sorted_tensors = sort_for_alignment(tensors);
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
