#include "models/checkpoints/tensor_source.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/torch_file.h"

namespace vlmtrain::models {

namespace {

namespace fs = std::filesystem;

bool is_torch_file(const fs::path& file) {
  return file.extension() == ".pt" || file.extension() == ".pth";
}

bool is_weight_file(const fs::path& file) {
  return is_torch_file(file) || file.extension() == ".safetensors";
}

/// The file itself, or the one in the folder.
fs::path find_weight_file(const fs::path& path, const TensorSourceMessages& messages) {
  if (!fs::is_directory(path)) {
    if (is_weight_file(path)) return path;
    throw data_error("{}: {}", path.string(), messages.not_found);
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (is_weight_file(entry.path())) files.push_back(entry.path());
  }
  if (files.size() == 1) return files.front();
  std::vector<std::string> names;
  names.reserve(files.size());
  for (const auto& file : files) names.push_back(file.filename().string());
  std::ranges::sort(names);
  throw data_error("{}: has no config.json, and {} of weights where it should have one{}; {}", path.string(),
                   files.empty() ? "no file" : fmt::format("{} files", files.size()),
                   files.empty() ? "" : fmt::format(" ({})", fmt::join(names, ", ")), messages.choose_file);
}

}  // namespace

template <class File>
void TensorSource::add_tensors(File file) {
  const auto shared_file = std::make_shared<const File>(std::move(file));
  for (const auto& name : shared_file->names()) {
    const io::TensorInfo& info = shared_file->info(name);
    tensors_.emplace(name, StoredTensor{.shape = info.shape,
                                        .dtype = info.dtype,
                                        .read = [shared_file, name] { return shared_file->tensor(name); },
                                        .release = [shared_file, name] { shared_file->release(name); }});
  }
}

TensorSource::TensorSource(const fs::path& path, const TensorSourceMessages& messages) : path_(path) {
  if (fs::is_directory(path) && (fs::exists(path / "config.json") || fs::exists(path / "model.safetensors"))) {
    add_tensors(io::CheckpointTensors(path));
    return;
  }
  const fs::path file = find_weight_file(path, messages);
  if (!is_torch_file(file)) {
    add_tensors(io::SafetensorsFile(file));
    return;
  }
  for (const auto& [name, tensor] : io::read_torch_file(file)) {
    tensors_.emplace(name, StoredTensor{.shape = tensor.sizes().vec(),
                                        .dtype = tensor.scalar_type(),
                                        .read = [tensor = tensor] { return tensor.contiguous(); }});
  }
}

fs::path TensorSource::folder() const {
  return fs::is_directory(path_) ? path_ : path_.parent_path();
}

const StoredTensor* TensorSource::find(const std::string& name) const {
  const auto it = tensors_.find(name);
  return it == tensors_.end() ? nullptr : &it->second;
}

bool TensorSource::has_prefix(std::string_view prefix) const {
  const auto it = tensors_.lower_bound(std::string(prefix));
  return it != tensors_.end() && it->first.starts_with(prefix);
}

}  // namespace vlmtrain::models
