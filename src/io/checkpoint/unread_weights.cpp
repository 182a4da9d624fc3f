#include "vlmtrain/io/unread_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <system_error>

#include "io/checkpoint/checkpoint_layout.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::io {

namespace {

namespace fs = std::filesystem;

/// Returns the names of the folder's files that satisfy `accepts`, sorted.
template <class Predicate>
std::vector<std::string> list_files(const fs::path& folder, const Predicate& accepts) {
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
bool is_shard(std::string_view name) {
  return name.ends_with(".safetensors") && name.find("-of-") != std::string_view::npos;
}

bool is_safetensors(std::string_view name) {
  return name.ends_with(".safetensors") && !name.starts_with("adapter_model");
}

std::string join_names(const std::vector<std::string>& names) {
  constexpr size_t kMaxListed = 3;  // keeps the message on one line
  const std::vector<std::string> first(names.begin(),
                                       names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMaxListed)));
  return fmt::format("{}{}", fmt::join(first, ", "), names.size() > kMaxListed ? ", …" : "");
}

/// Returns the files that an index names. Returns none if it cannot be read, because loading it
/// reports the error.
std::set<std::string> read_index_files(const fs::path& index) {
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
std::vector<std::string> find_duplicates(const fs::path& folder, const std::set<std::string>& shards) {
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

}  // namespace

std::vector<std::string> find_unread_weight_files(const fs::path& folder) {
  std::vector<std::string> warnings;
  std::error_code error;
  const fs::path index = folder / kWeightsIndexName;
  const bool has_index = fs::exists(index, error), has_single = fs::exists(folder / kWeightsName, error);
  const auto indexed_files = has_index ? read_index_files(index) : std::set<std::string>();
  const auto shards = list_files(folder, is_shard);
  if (has_single) {
    const bool is_its_index = indexed_files.size() == 1 && indexed_files.contains(std::string(kWeightsName));
    if ((has_index && !is_its_index) || (!has_index && !shards.empty())) {
      warnings.push_back(fmt::format(
          "{}: weights are read from {}, as transformers does; {} are not read: remove one of the two", folder.string(),
          kWeightsName,
          has_index ? fmt::format("{} and the shards that it names", kWeightsIndexName) : join_names(shards)));
    }
    return warnings;
  }
  if (!has_index) return warnings;
  std::vector<std::string> unindexed_shards;
  std::ranges::copy_if(shards, std::back_inserter(unindexed_shards),
                       [&](const auto& shard) { return !indexed_files.contains(shard); });
  if (!unindexed_shards.empty()) {
    warnings.push_back(
        fmt::format("{}: {} are not read, because {} does not name them: remove them, or download the "
                    "index that belongs to them",
                    folder.string(), join_names(unindexed_shards), kWeightsIndexName));
  }
  if (const auto duplicates = find_duplicates(folder, indexed_files); !duplicates.empty()) {
    warnings.push_back(fmt::format("{}: {} stand in two shards each; they are read from the file that {} names",
                                   folder.string(), join_names(duplicates), kWeightsIndexName));
  }
  return warnings;
}

std::string describe_other_weights(const fs::path& folder) {
  if (const auto shards = list_files(folder, is_shard); !shards.empty()) {
    return fmt::format("it has {} without their index; download {}, which places each tensor", join_names(shards),
                       kWeightsIndexName);
  }
  if (const auto consolidated =
          list_files(folder, [](std::string_view name) { return name == "consolidated.safetensors"; });
      !consolidated.empty()) {
    return "consolidated.safetensors has the names of its maker's own code; take the checkpoint in Hugging Face's "
           "layout, or convert it with transformers";
  }
  if (const auto others = list_files(folder, is_safetensors); !others.empty()) {
    return fmt::format("it has {}; the file of the whole model is called {}", join_names(others), kWeightsName);
  }
  if (const auto gguf = list_files(folder, [](std::string_view name) { return name.ends_with(".gguf"); });
      !gguf.empty()) {
    return fmt::format("{} are quantized weights for llama.cpp; take the checkpoint that they were made from",
                       join_names(gguf));
  }
  return "";
}

}  // namespace vlmtrain::io
