#include "models/checkpoints/tensor_source.h"

#include <sys/stat.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <string>
#include <system_error>
#include <utility>

#include "models/checkpoints/load_weights.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/torch_file.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

namespace {

namespace fs = std::filesystem;

bool is_torch_file(const fs::path& file) {
  return file.extension() == ".pt" || file.extension() == ".pth";
}

bool is_weight_file(const fs::path& file) {
  return is_torch_file(file) || file.extension() == ".safetensors";
}

/// Returns `path` if it is a file, else the weight file in the folder.
fs::path find_weight_file(const fs::path& path, const TensorSourceErrorMessages& messages) {
  if (!fs::is_directory(path)) {
    if (is_weight_file(path)) return path;
    throw data_error("{}: {}", path.string(), messages.not_found_message);
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
  throw data_error("{}: has no config.json, and {} of weights instead of exactly one{}; {}", path.string(),
                   files.empty() ? "no file" : fmt::format("{} files", files.size()),
                   files.empty() ? "" : fmt::format(" ({})", fmt::join(names, ", ")), messages.choose_file_hint);
}

io::LazyTensor make_random_weight(const VisionLanguageModel& model, const nn::Parameter& parameter,
                                  at::ScalarType dtype, uint64_t seed) {
  return {.name = model.get_checkpoint_tensor_name(parameter.name),
          .dtype = dtype,
          .shape = parameter.sizes().vec(),
          .materialize = [parameter, dtype, seed] { return make_initial_values(parameter, seed).to(dtype); }};
}

}  // namespace

uintmax_t hash_weight_files(const std::filesystem::path& folder) {
  uintmax_t hash = 0;
  std::error_code error;
  for (auto entry = std::filesystem::directory_iterator(folder, error);
       !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) {
    if (entry->path().string().find(".safetensors") == std::string::npos) continue;
    struct stat file {};
    if (stat(entry->path().c_str(), &file) != 0) continue;
    // A sum does not depend on the order of directory entries, which is undefined. The factors of
    // size and inode are arbitrary.
    hash += static_cast<uintmax_t>(file.st_size) * 31 + static_cast<uintmax_t>(file.st_ino) * 17 +
            static_cast<uintmax_t>(file.st_mtim.tv_sec) * 1'000'000'000 + static_cast<uintmax_t>(file.st_mtim.tv_nsec);
  }
  return hash;
}

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

TensorSource::TensorSource(const fs::path& path, const TensorSourceErrorMessages& messages) : path_(path) {
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

int64_t CombinedWeights::bytes() const {
  int64_t bytes = 0;
  for (const auto& weight : weights) bytes += weight.bytes();
  return bytes;
}

CombinedWeights combine_weights(const VisionLanguageModel& model, const std::vector<FindWeightFunction>& sources,
                                at::ScalarType dtype, uint64_t seed) {
  CombinedWeights result{.weights = {}, .num_tensors = std::vector<int64_t>(sources.size())};
  for (const auto& parameter : get_base_parameters(model)) {
    std::optional<io::LazyTensor> weight;
    for (size_t source = 0; source < sources.size() && !weight; ++source) {
      weight = sources[source](parameter);
      if (weight) ++result.num_tensors[source];
    }
    if (!weight) {
      ++result.num_random_tensors;
      result.randomly_initialized_modules.insert(parameter.name.substr(0, parameter.name.find('.')));
      weight = make_random_weight(model, parameter, dtype, seed);
    }
    result.weights.push_back(*std::move(weight));
  }
  io::NamedTensors tables;
  model.add_computed_tables(tables);
  for (auto& table : io::make_lazy_tensors(tables)) result.weights.push_back(std::move(table));
  return result;
}

void write_combined_weights(const CombinedWeights& combined_weights, uint64_t seed, const fs::path& folder) {
  spdlog::info("random initialization: {} tensors ({}), seed {}; writing {}", combined_weights.num_random_tensors,
               fmt::join(combined_weights.randomly_initialized_modules, ", "), seed,
               format_bytes(combined_weights.bytes()));
  io::write_checkpoint_tensors(folder, combined_weights.weights, io::kDefaultMaxShardBytes);
}

}  // namespace vlmtrain::models
