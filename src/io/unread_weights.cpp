#include "vlmtrain/io/unread_weights.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <system_error>

#include "io/checkpoint_layout.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::io {

namespace {

namespace fs = std::filesystem;

/// Names of the folder's files that `is_one` accepts, sorted.
template <class IsOne>
std::vector<std::string> files_in(const fs::path& folder, const IsOne& is_one) {
  std::vector<std::string> names;
  std::error_code error;
  for (auto entry = fs::directory_iterator(folder, error); !error && entry != fs::directory_iterator();
       entry.increment(error)) {
    std::string name = entry->path().filename().string();
    if (!name.starts_with('.') && is_one(name)) names.push_back(std::move(name));
  }
  std::ranges::sort(names);
  return names;
}

/// model-00001-of-00002.safetensors
bool is_shard(std::string_view name) {
  return name.ends_with(".safetensors") && name.find("-of-") != std::string_view::npos;
}

bool is_safetensors(std::string_view name) {
  return name.ends_with(".safetensors") && !name.starts_with("adapter_model");
}

std::string listed(const std::vector<std::string>& names) {
  constexpr size_t kMost = 3;
  const std::vector<std::string> first(names.begin(),
                                       names.begin() + static_cast<std::ptrdiff_t>(std::min(names.size(), kMost)));
  return fmt::format("{}{}", fmt::join(first, ", "), names.size() > kMost ? ", …" : "");
}

/// The files that an index names; none where it cannot be read: whoever loads by it says why.
std::set<std::string> files_of_index(const fs::path& index) {
  std::set<std::string> files;
  try {
    const auto content = read_json(index);
    const auto map = content.find("weight_map");
    if (map == content.end() || !map->is_object()) return files;
    for (const auto& file : *map) {
      if (file.is_string()) files.insert(file.get<std::string>());
    }
  } catch (const UserError&) {
    return {};
  }
  return files;
}

/// Tensors that stand in two of the shards.
std::vector<std::string> duplicates_in(const fs::path& folder, const std::set<std::string>& shards) {
  std::map<std::string, int> times;
  for (const auto& shard : shards) {
    const SafetensorsFile file(folder / shard);
    for (const auto& name : file.names()) ++times[name];
  }
  std::vector<std::string> names;
  for (const auto& [name, count] : times) {
    if (count > 1) names.push_back(name);
  }
  return names;
}

}  // namespace

std::vector<std::string> unread_weight_files(const fs::path& folder) {
  std::vector<std::string> remarks;
  std::error_code error;
  const fs::path index = folder / kWeightsIndexName;
  const bool has_index = fs::exists(index, error), has_single = fs::exists(folder / kWeightsName, error);
  const auto named = has_index ? files_of_index(index) : std::set<std::string>();
  const auto shards = files_in(folder, is_shard);
  if (has_single) {
    const bool is_its_index = named.size() == 1 && named.contains(std::string(kWeightsName));
    if ((has_index && !is_its_index) || (!has_index && !shards.empty())) {
      remarks.push_back(
          fmt::format("{}: weights are read from {}, as transformers does; {} are not read: remove one of the two",
                      folder.string(), kWeightsName,
                      has_index ? fmt::format("{} and the shards that it names", kWeightsIndexName) : listed(shards)));
    }
    return remarks;
  }
  if (!has_index) return remarks;
  std::vector<std::string> stray;
  std::ranges::copy_if(shards, std::back_inserter(stray), [&](const auto& shard) { return !named.contains(shard); });
  if (!stray.empty()) {
    remarks.push_back(
        fmt::format("{}: {} are not read, because {} does not name them: remove them, or download the "
                    "index that belongs to them",
                    folder.string(), listed(stray), kWeightsIndexName));
  }
  if (const auto twice = duplicates_in(folder, named); !twice.empty()) {
    remarks.push_back(fmt::format("{}: {} stand in two shards each; they are read from the file that {} names",
                                  folder.string(), listed(twice), kWeightsIndexName));
  }
  return remarks;
}

std::string describe_other_weights(const fs::path& folder) {
  if (const auto shards = files_in(folder, is_shard); !shards.empty()) {
    return fmt::format("it has {} without their index; download {}, which places each tensor", listed(shards),
                       kWeightsIndexName);
  }
  if (const auto own = files_in(folder, [](std::string_view name) { return name == "consolidated.safetensors"; });
      !own.empty()) {
    return "consolidated.safetensors has the names of its maker's own code; take the checkpoint in Hugging Face's "
           "layout, or convert it with transformers";
  }
  if (const auto others = files_in(folder, is_safetensors); !others.empty()) {
    return fmt::format("it has {}; the file of the whole model is called {}", listed(others), kWeightsName);
  }
  if (const auto gguf = files_in(folder, [](std::string_view name) { return name.ends_with(".gguf"); });
      !gguf.empty()) {
    return fmt::format("{} are quantized weights for llama.cpp; take the checkpoint that they were made from",
                       listed(gguf));
  }
  return "";
}

}  // namespace vlmtrain::io
