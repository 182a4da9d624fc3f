#include "vlmtrain/io/checkpoint.h"

#include <nlohmann/json.hpp>

#include <map>
#include <numeric>
#include <system_error>
#include <utility>

#include "io/checkpoint/checkpoint_layout.h"
#include "io/files/file_error.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/io/unread_weights.h"

namespace vlmtrain::io {

namespace {

namespace fs = std::filesystem;

[[noreturn]] void fail_without_weights(const fs::path& folder) {
  if (!fs::is_directory(folder)) {
    throw data_error(
        "the checkpoint folder {} does not exist; a model of the Hugging Face Hub is to be downloaded first",
        folder.string());
  }
  for (const std::string_view pickled_name : {kPickledWeightsName, kPickledWeightsIndexName}) {
    if (fs::exists(folder / pickled_name)) {
      throw data_error(
          "{} has only pickled weights ({}), which are not read; convert them with transformers: "
          "from_pretrained(\"{}\").save_pretrained(NEW_FOLDER, safe_serialization=True)",
          folder.string(), pickled_name, folder.string());
    }
  }
  if (const std::string alternative = describe_other_weights(folder); !alternative.empty()) {
    throw data_error("{} has neither {} nor {}: {}", folder.string(), kWeightsName, kWeightsIndexName, alternative);
  }
  throw data_error("{} has no weights: neither {} nor {} is there; give the folder that holds them", folder.string(),
                   kWeightsName, kWeightsIndexName);
}

/// Also returns true on errors, such as a loop of links: opening the file then reports them.
bool path_exists(const fs::path& path) {
  std::error_code error;
  return fs::exists(path, error) || error;
}

nlohmann::json read_weight_map(const fs::path& index) {
  const nlohmann::json content = read_json(index);
  if (!content.is_object() || !content.contains("weight_map") || !content["weight_map"].is_object()) {
    throw data_error("{} has no \"weight_map\" of tensor names to files; download it again", index.string());
  }
  return content["weight_map"];
}

fs::path shard_path(const fs::path& index, const std::string& shard) {
  const fs::path name(shard);
  if (shard.empty() || name.has_parent_path() || name == "." || name == "..") {
    throw data_error("{} names the shard \"{}\", which is not the name of a file beside it; download the index again",
                     index.string(), shard);
  }
  fs::path path = index.parent_path() / name;
  if (!path_exists(path)) {
    throw data_error("{} names the shard {}, which is missing; download it", index.string(), path.string());
  }
  return path;
}

void refuse_existing_weights(const fs::path& folder) {
  for (const std::string_view name : {kWeightsName, kWeightsIndexName}) {
    if (fs::exists(folder / name)) {
      throw run_error("{} holds weights already ({}); write to an empty folder", folder.string(), name);
    }
  }
}

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

CheckpointTensors::CheckpointTensors(fs::path folder) : folder_(std::move(folder)) {
  if (path_exists(folder_ / kWeightsName)) {
    open_single(folder_ / kWeightsName);
  } else if (path_exists(folder_ / kWeightsIndexName)) {
    open_sharded(folder_ / kWeightsIndexName);
  } else {
    fail_without_weights(folder_);
  }
}

void CheckpointTensors::open_single(const fs::path& file) {
  names_ = shards_.emplace_back(file).names();
  for (const std::string& name : names_) {
    shard_index_by_name_.emplace(name, 0);
  }
}

void CheckpointTensors::open_sharded(const fs::path& index) {
  const nlohmann::json weight_map = read_weight_map(index);
  std::map<std::string, size_t> shard_indices;
  for (const auto& [name, file] : weight_map.items()) {
    if (!file.is_string()) {
      throw data_error("{}: the file of the tensor {} is not a string; download it again", index.string(), name);
    }
    const auto shard_name = file.get<std::string>();
    const auto [it, is_new] = shard_indices.try_emplace(shard_name, shards_.size());
    if (is_new) {
      shards_.emplace_back(shard_path(index, shard_name));
    }
    const SafetensorsFile& shard = shards_[it->second];
    if (!shard.contains(name)) {
      throw data_error("{} places the tensor {} in {}, which has none of that name; download both again",
                       index.string(), name, shard.path().string());
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
    throw data_error("the checkpoint {} has no tensor {}; is it a checkpoint of another model?", folder_.string(),
                     name);
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
  if (path_exists(folder / kWeightsName)) return SafetensorsFile(folder / kWeightsName).names();
  std::vector<std::string> names;
  if (path_exists(folder / kWeightsIndexName)) {
    const nlohmann::json weight_map = read_weight_map(folder / kWeightsIndexName);
    for (const auto& [name, file] : weight_map.items()) names.push_back(name);
  }
  return names;
}

void write_checkpoint_tensors(const fs::path& folder, const LazyTensors& tensors, int64_t max_shard_bytes) {
  VLMTRAIN_CHECK(max_shard_bytes > 0, "shards of {} bytes", max_shard_bytes);
  refuse_existing_weights(folder);
  // Checks all shards at once, because computing the tensors of later shards may take minutes.
  const auto add_bytes = [](int64_t sum, const LazyTensor& tensor) { return sum + tensor.bytes(); };
  require_free_space(folder, std::accumulate(tensors.begin(), tensors.end(), int64_t{0}, add_bytes));
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
      VLMTRAIN_CHECK(is_new, "the tensor {} is to be written twice", tensor.name);
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
