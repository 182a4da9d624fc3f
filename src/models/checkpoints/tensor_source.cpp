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
fs::path only_weight_file(const fs::path& place, const TensorSourceWords& words) {
  if (!fs::is_directory(place)) {
    if (is_weight_file(place)) return place;
    throw data_error("{}: {}", place.string(), words.is_none);
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(place)) {
    if (is_weight_file(entry.path())) files.push_back(entry.path());
  }
  if (files.size() == 1) return files.front();
  std::vector<std::string> names;
  names.reserve(files.size());
  for (const auto& file : files) names.push_back(file.filename().string());
  std::ranges::sort(names);
  throw data_error("{}: has no config.json, and {} of weights where it should have one{}; {}", place.string(),
                   files.empty() ? "no file" : fmt::format("{} files", files.size()),
                   files.empty() ? "" : fmt::format(" ({})", fmt::join(names, ", ")), words.give_one);
}

}  // namespace

template <class File>
void TensorSource::take(File file) {
  const auto kept = std::make_shared<const File>(std::move(file));
  for (const auto& name : kept->names()) {
    const io::TensorInfo& info = kept->info(name);
    tensors_.emplace(name, StoredTensor{.shape = info.shape,
                                        .dtype = info.dtype,
                                        .read = [kept, name] { return kept->tensor(name); },
                                        .release = [kept, name] { kept->release(name); }});
  }
}

TensorSource::TensorSource(const fs::path& place, const TensorSourceWords& words) : place_(place) {
  if (fs::is_directory(place) && (fs::exists(place / "config.json") || fs::exists(place / "model.safetensors"))) {
    take(io::CheckpointTensors(place));
    return;
  }
  const fs::path file = only_weight_file(place, words);
  if (!is_torch_file(file)) {
    take(io::SafetensorsFile(file));
    return;
  }
  for (const auto& [name, tensor] : io::read_torch_file(file)) {
    tensors_.emplace(name, StoredTensor{.shape = tensor.sizes().vec(),
                                        .dtype = tensor.scalar_type(),
                                        .read = [tensor = tensor] { return tensor.contiguous(); }});
  }
}

fs::path TensorSource::folder() const {
  return fs::is_directory(place_) ? place_ : place_.parent_path();
}

const StoredTensor* TensorSource::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

bool TensorSource::has_any(std::string_view beginning) const {
  const auto found = tensors_.lower_bound(std::string(beginning));
  return found != tensors_.end() && found->first.starts_with(beginning);
}

}  // namespace vlmtrain::models
