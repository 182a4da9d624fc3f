#include "vlmtrain/io/checkpoint.h"

#include <ATen/core/Tensor.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "io/checkpoint/safetensors_header.h"
#include "io/files/file_system.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::io {

namespace {

namespace fs = std::filesystem;

// File names of transformers.utils: SAFE_WEIGHTS_NAME, SAFE_WEIGHTS_INDEX_NAME, WEIGHTS_NAME,
// WEIGHTS_INDEX_NAME.
constexpr std::string_view kWeightsName = "model.safetensors";
constexpr std::string_view kWeightsIndexName = "model.safetensors.index.json";
constexpr std::string_view kPickledWeightsName = "pytorch_model.bin";
constexpr std::string_view kPickledWeightsIndexName = "pytorch_model.bin.index.json";

/// Returns the sorted names of files in `folder` that satisfy `accepts`, without hidden files.
/// Returns the names found so far if the folder cannot be read.
template <class Predicate>
std::vector<std::string> list_file_names(const fs::path& folder, const Predicate& accepts) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (!name.starts_with('.') && accepts(name)) names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  return names;
}

/// Returns true for names such as model-00001-of-00002.safetensors.
bool is_shard_file_name(std::string_view name) {
  return name.ends_with(".safetensors") && name.find("-of-") != std::string_view::npos;
}

/// Returns true for safetensors files except PEFT's adapters, which are not a whole model.
bool is_model_safetensors_file(std::string_view name) {
  return name.ends_with(".safetensors") && !name.starts_with("adapter_model");
}

/// Joins the first names of a list for a message.
std::string join_first_names(const std::vector<std::string>& names) {
  constexpr size_t kMaxListedNames = 3;  // keeps the message on one line
  const std::vector<std::string> listed_names(
      names.begin(), names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMaxListedNames)));
  return fmt::format("{}{}", fmt::join(listed_names, ", "), names.size() > kMaxListedNames ? ", …" : "");
}

/// Returns the files that an index names. Returns an empty set if it cannot be read: the error is
/// reported when the weights are loaded.
std::set<std::string> list_indexed_shards(const fs::path& index) {
  std::set<std::string> files;
  try {
    const auto content = read_json(index);
    const auto weight_map = content.find("weight_map");
    if (weight_map == content.end() || !weight_map->is_object()) return files;
    for (const auto& file : *weight_map) {
      if (file.is_string()) files.insert(file.get<std::string>());
    }
  } catch (const UserError&) {
    return {};
  }
  return files;
}

/// Returns the tensors that are in more than one shard.
std::vector<std::string> find_duplicate_tensor_names(const fs::path& folder, const std::set<std::string>& shards) {
  std::map<std::string, int> counts;
  for (const auto& shard : shards) {
    const SafetensorsFile file(folder / shard);
    for (const auto& name : file.names()) ++counts[name];
  }
  std::vector<std::string> names;
  for (const auto& [name, count] : counts) {
    if (count > 1) names.push_back(name);
  }
  return names;
}

[[noreturn]] void throw_missing_weights(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw data_error("{}: the folder does not exist; check the path", folder.string());
  }
  for (const std::string_view pickled_name : {kPickledWeightsName, kPickledWeightsIndexName}) {
    if (fs::exists(folder / pickled_name)) {
      throw data_error(
          "{}: has only pickled weights ({}), which are not supported; convert them with transformers: "
          "from_pretrained(\"{}\").save_pretrained(NEW_FOLDER, safe_serialization=True)",
          folder.string(), pickled_name, folder.string());
    }
  }
  if (const std::string other_weights = describe_unsupported_weights(folder); !other_weights.empty()) {
    throw data_error("{}: has neither {} nor {}: {}", folder.string(), kWeightsName, kWeightsIndexName, other_weights);
  }
  throw data_error("{}: has no weights, neither {} nor {}; give the folder that contains them", folder.string(),
                   kWeightsName, kWeightsIndexName);
}

/// Returns true if `path` exists or if that cannot be determined, such as for a loop of links.
/// Opening the file then reports the error.
bool may_exist(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error) || error;
}

nlohmann::json read_weight_map(const fs::path& index) {
  const nlohmann::json content = read_json(index);
  if (!content.is_object() || !content.contains("weight_map") || !content["weight_map"].is_object()) {
    throw data_error("{}: has no \"weight_map\" of tensor names to files; download it again", index.string());
  }
  return content["weight_map"];
}

/// Returns the path of the shard that an index names. Throws data_error if it is not a plain file
/// name, so that an index cannot make the program read files elsewhere, or if the file is missing.
fs::path resolve_shard_path(const fs::path& index, const std::string& shard) {
  const fs::path name(shard);
  if (shard.empty() || name.has_parent_path() || name == "." || name == "..") {
    throw data_error(
        "{}: names the shard \"{}\", which is not a file name in the same folder; download the index again",
        index.string(), shard);
  }
  fs::path path = index.parent_path() / name;
  if (!may_exist(path)) {
    throw data_error("{}: names the shard {}, which is missing; download it", index.string(), path.string());
  }
  return path;
}

void check_no_existing_weights(const fs::path& folder) {
  for (const std::string_view name : {kWeightsName, kWeightsIndexName}) {
    if (fs::exists(folder / name)) {
      throw run_error("{}: already contains weights ({}); write to an empty folder", folder.string(), name);
    }
  }
}

/// Fills shards in the order of the tensors, as transformers does.
std::vector<LazyTensors> split_into_shards(const LazyTensors& tensors, int64_t max_shard_bytes) {
  std::vector<LazyTensors> shards(1);
  int64_t shard_bytes = 0;
  for (const LazyTensor& tensor : tensors) {
    if (!shards.back().empty() && shard_bytes + tensor.bytes() > max_shard_bytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shards.back().push_back(tensor);
    shard_bytes += tensor.bytes();
  }
  return shards;
}

}  // namespace

std::vector<std::string> list_weight_file_warnings(const fs::path& folder) {
  std::vector<std::string> warnings;
  std::error_code error;
  const fs::path index = folder / kWeightsIndexName;
  // Errors count as absence: loading the weights reports them.
  const bool has_index = fs::exists(index, error), has_single_file = fs::exists(folder / kWeightsName, error);
  const auto indexed_shards = has_index ? list_indexed_shards(index) : std::set<std::string>();
  const auto shards = list_file_names(folder, is_shard_file_name);
  if (has_single_file) {
    // An index that names only the single file is consistent with it.
    const bool is_single_file_index = indexed_shards.size() == 1 && indexed_shards.contains(std::string(kWeightsName));
    if ((has_index && !is_single_file_index) || (!has_index && !shards.empty())) {
      warnings.push_back(fmt::format(
          "{}: weights are read from {}, as in transformers, and {} are ignored; remove one of the two",
          folder.string(), kWeightsName,
          has_index ? fmt::format("{} and the shards that it names", kWeightsIndexName) : join_first_names(shards)));
    }
    return warnings;
  }
  if (!has_index) return warnings;
  std::vector<std::string> unindexed_shards;
  std::ranges::copy_if(shards, std::back_inserter(unindexed_shards),
                       [&](const auto& shard) { return !indexed_shards.contains(shard); });
  if (!unindexed_shards.empty()) {
    warnings.push_back(
        fmt::format("{}: {} are ignored, because {} does not name them; remove them, or download the matching index",
                    folder.string(), join_first_names(unindexed_shards), kWeightsIndexName));
  }
  if (const auto duplicates = find_duplicate_tensor_names(folder, indexed_shards); !duplicates.empty()) {
    warnings.push_back(fmt::format("{}: {} occur in two shards each; they are read from the file that {} names",
                                   folder.string(), join_first_names(duplicates), kWeightsIndexName));
  }
  return warnings;
}

std::string describe_unsupported_weights(const fs::path& folder) {
  if (const auto shards = list_file_names(folder, is_shard_file_name); !shards.empty()) {
    return fmt::format("it has {} but not their index; download {}", join_first_names(shards), kWeightsIndexName);
  }
  if (const auto consolidated =
          list_file_names(folder, [](std::string_view name) { return name == "consolidated.safetensors"; });
      !consolidated.empty()) {
    return "consolidated.safetensors has tensor names that differ from transformers'; use the checkpoint in Hugging "
           "Face's layout, or convert it with transformers";
  }
  if (const auto others = list_file_names(folder, is_model_safetensors_file); !others.empty()) {
    return fmt::format("it has {}; rename the file of the whole model to {}", join_first_names(others), kWeightsName);
  }
  if (const auto gguf = list_file_names(folder, [](std::string_view name) { return name.ends_with(".gguf"); });
      !gguf.empty()) {
    return fmt::format("{} are quantized weights for llama.cpp; use the original checkpoint", join_first_names(gguf));
  }
  return "";
}

CheckpointTensors::CheckpointTensors(fs::path folder) : folder_(std::move(folder)) {
  if (may_exist(folder_ / kWeightsName)) {
    open_single_file(folder_ / kWeightsName);
  } else if (may_exist(folder_ / kWeightsIndexName)) {
    open_shards(folder_ / kWeightsIndexName);
  } else {
    throw_missing_weights(folder_);
  }
}

void CheckpointTensors::open_single_file(const fs::path& file) {
  names_ = shards_.emplace_back(file).names();
  for (const std::string& name : names_) {
    shard_index_by_name_.emplace(name, 0);
  }
}

void CheckpointTensors::open_shards(const fs::path& index) {
  const nlohmann::json weight_map = read_weight_map(index);
  std::map<std::string, size_t> shard_index_by_file_name;
  for (const auto& [name, file] : weight_map.items()) {
    if (!file.is_string()) {
      throw data_error("{}: the file of the tensor {} is not a string; download it again", index.string(), name);
    }
    const auto shard_file_name = file.get<std::string>();
    const auto [it, is_new] = shard_index_by_file_name.try_emplace(shard_file_name, shards_.size());
    if (is_new) {
      shards_.emplace_back(resolve_shard_path(index, shard_file_name));
    }
    const SafetensorsFile& shard = shards_[it->second];
    if (!shard.contains(name)) {
      throw data_error("{}: maps the tensor {} to {}, which does not contain it; download both again", index.string(),
                       name, shard.path().string());
    }
    names_.push_back(name);
    shard_index_by_name_.emplace(name, it->second);
  }
  // transformers loads all tensors of the shards, also those that the index lacks.
  for (size_t i = 0; i < shards_.size(); ++i) {
    for (const std::string& name : shards_[i].names()) {
      if (shard_index_by_name_.emplace(name, i).second) names_.push_back(name);
    }
  }
}

const SafetensorsFile& CheckpointTensors::find_shard(const std::string& name) const {
  const auto it = shard_index_by_name_.find(name);
  if (it == shard_index_by_name_.end()) {
    throw make_missing_tensor_error(folder_, name);
  }
  return shards_[it->second];
}

const TensorInfo& CheckpointTensors::info(const std::string& name) const {
  return find_shard(name).info(name);
}

at::Tensor CheckpointTensors::tensor(const std::string& name) const {
  return find_shard(name).tensor(name);
}

void CheckpointTensors::release(const std::string& name) const {
  find_shard(name).release(name);
}

std::vector<std::string> read_checkpoint_tensor_names(const fs::path& folder) {
  if (may_exist(folder / kWeightsName)) return SafetensorsFile(folder / kWeightsName).names();
  std::vector<std::string> names;
  if (may_exist(folder / kWeightsIndexName)) {
    const nlohmann::json weight_map = read_weight_map(folder / kWeightsIndexName);
    for (const auto& [name, file] : weight_map.items()) names.push_back(name);
  }
  return names;
}

void write_checkpoint_tensors(const fs::path& folder, const LazyTensors& tensors, int64_t max_shard_bytes) {
  VLMTRAIN_CHECK(max_shard_bytes > 0, "max_shard_bytes is {}, but must be positive", max_shard_bytes);
  check_no_existing_weights(folder);
  // The space for all shards is checked first, because computing the tensors of a shard may take
  // minutes.
  const auto add_tensor_bytes = [](int64_t sum, const LazyTensor& tensor) { return sum + tensor.bytes(); };
  check_free_space(folder, std::accumulate(tensors.begin(), tensors.end(), int64_t{0}, add_tensor_bytes));
  const std::vector<LazyTensors> shards = split_into_shards(tensors, max_shard_bytes);
  if (shards.size() == 1) {
    write_safetensors(folder / kWeightsName, shards.front());
    return;
  }
  int64_t total_bytes = 0;
  std::map<std::string, std::string> weight_map;
  for (size_t i = 0; i < shards.size(); ++i) {
    const std::string file_name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    write_safetensors(folder / file_name, shards[i]);
    for (const LazyTensor& tensor : shards[i]) {
      total_bytes += tensor.bytes();
      const bool is_new = weight_map.emplace(tensor.name, file_name).second;
      VLMTRAIN_CHECK(is_new, "the tensor {} would be written twice", tensor.name);
    }
  }
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  // The index is written last. Without it, the folder has no weights.
  write_file(folder / kWeightsIndexName, to_json_string(index, 2) + "\n");
}

void write_checkpoint_tensors(const fs::path& folder, const NamedTensors& tensors, int64_t max_shard_bytes) {
  write_checkpoint_tensors(folder, make_lazy_tensors(tensors), max_shard_bytes);
}

}  // namespace vlmtrain::io
