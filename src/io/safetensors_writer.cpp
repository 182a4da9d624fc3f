#include <c10/core/Layout.h>

#include <algorithm>
#include <numeric>
#include <tuple>

#include "io/safetensors_header.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::io {
namespace {

NamedTensors in_file_order(NamedTensors tensors) {
  std::ranges::sort(tensors, {}, [](const auto& entry) {
    return std::tuple(-static_cast<int64_t>(entry.second.element_size()), std::string_view(entry.first));
  });
  for (size_t i = 1; i < tensors.size(); ++i) {
    VLMTRAIN_CHECK(tensors[i - 1].first != tensors[i].first, "the tensor {} is to be written twice", tensors[i].first);
  }
  return tensors;
}

TensorInfo info_of(const at::Tensor& tensor) {
  VLMTRAIN_CHECK(tensor.layout() == c10::Layout::Strided, "only dense tensors can be written");
  return {.dtype = tensor.scalar_type(),
          .shape = tensor.sizes().vec(),
          .offset_bytes = 0,
          .size_bytes = static_cast<int64_t>(tensor.nbytes())};
}

void write_tensor(AtomicFile& file, const at::Tensor& tensor) {
  const at::Tensor host = tensor.detach().cpu().contiguous();
  file.write({static_cast<const char*>(host.const_data_ptr()), host.nbytes()});
}

}  // namespace

void write_safetensors(const std::filesystem::path& path, const NamedTensors& tensors,
                       const std::map<std::string, std::string>& metadata) {
  const NamedTensors ordered = in_file_order(tensors);
  std::vector<std::pair<std::string, TensorInfo>> entries;
  int64_t data_bytes = 0;
  for (const auto& [name, tensor] : ordered) {
    entries.emplace_back(name, info_of(tensor));
    data_bytes += entries.back().second.size_bytes;
  }
  const std::string header = format_safetensors_header(entries, metadata);
  AtomicFile file(path, static_cast<int64_t>(header.size()) + data_bytes);
  file.write(header);
  for (const auto& [name, tensor] : ordered) {
    write_tensor(file, tensor);
  }
  file.commit();
}

}  // namespace vlmtrain::io
