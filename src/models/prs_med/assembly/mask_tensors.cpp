#include "models/prs_med/assembly/mask_tensors.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/torch_file.h"

namespace vlmtrain::models::prs_med {

namespace {

namespace fs = std::filesystem;

bool is_torch_file(const fs::path& file) {
  return file.extension() == ".pt" || file.extension() == ".pth";
}

bool is_mask_file(const fs::path& file) {
  return is_torch_file(file) || file.extension() == ".safetensors";
}

/// The file itself, or the one in the folder.
fs::path only_mask_file(const fs::path& place) {
  if (!fs::is_directory(place)) {
    if (is_mask_file(place)) return place;
    throw data_error(
        "{}: is no mask model; give a folder with transformers' SamModel, or a .pt, .pth or .safetensors file of SAM "
        "or MobileSAM",
        place.string());
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(place)) {
    if (is_mask_file(entry.path())) files.push_back(entry.path());
  }
  if (files.size() == 1) return files.front();
  std::vector<std::string> names;
  names.reserve(files.size());
  for (const auto& file : files) names.push_back(file.filename().string());
  std::ranges::sort(names);
  throw data_error(
      "{}: has no config.json, and {} of weights where it should have one{}; give the file of SAM or MobileSAM itself",
      place.string(), files.empty() ? "no file" : fmt::format("{} files", files.size()),
      files.empty() ? "" : fmt::format(" ({})", fmt::join(names, ", ")));
}

}  // namespace

template <class File>
void MaskTensors::take(File file) {
  const auto kept = std::make_shared<const File>(std::move(file));
  for (const auto& name : kept->names()) {
    const io::TensorInfo& info = kept->info(name);
    tensors_.emplace(name, StoredTensor{.shape = info.shape,
                                        .dtype = info.dtype,
                                        .read = [kept, name] { return kept->tensor(name); },
                                        .release = [kept, name] { kept->release(name); }});
  }
}

MaskTensors::MaskTensors(const fs::path& place) : place_(place) {
  if (fs::is_directory(place) && (fs::exists(place / "config.json") || fs::exists(place / "model.safetensors"))) {
    take(io::CheckpointTensors(place));
    return;
  }
  const fs::path file = only_mask_file(place);
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

fs::path MaskTensors::folder() const {
  return fs::is_directory(place_) ? place_ : place_.parent_path();
}

const StoredTensor* MaskTensors::find(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : &found->second;
}

bool MaskTensors::has_any(std::string_view beginning) const {
  const auto found = tensors_.lower_bound(std::string(beginning));
  return found != tensors_.end() && found->first.starts_with(beginning);
}

}  // namespace vlmtrain::models::prs_med
