#include "hub/model_files.h"

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::hub {

namespace {

constexpr std::string_view kWeightsName = "model.safetensors";
constexpr std::string_view kWeightsIndexName = "model.safetensors.index.json";
constexpr std::string_view kConfigName = "config.json";
constexpr std::string_view kAdapterConfigName = "adapter_config.json";
constexpr std::string_view kTokenizerName = "tokenizer.json";
constexpr std::string_view kAdapterWeightsName = "adapter_model.safetensors";

const RepoFile* find_file(const std::vector<RepoFile>& files, std::string_view path) {
  const auto file = std::ranges::find(files, path, &RepoFile::path);
  return file == files.end() ? nullptr : &*file;
}

bool is_config_file(const RepoFile& file) {
  // tokenizer.model and merges.txt are not read, but saved with the model, for other programs.
  constexpr std::array<std::string_view, 4> kExtensions{".json", ".jinja", ".txt", ".model"};
  const std::string_view path = file.path;
  // transformers reads further chat templates from this folder.
  const bool has_known_folder =
      path.find('/') == std::string_view::npos || path.starts_with("additional_chat_templates/");
  return has_known_folder &&
         std::ranges::any_of(kExtensions, [&](auto extension) { return path.ends_with(extension); });
}

}  // namespace

void check_has_config(const std::vector<RepoFile>& files, const Repo& repo) {
  if (find_file(files, kConfigName) != nullptr || find_file(files, kAdapterConfigName) != nullptr) return;
  throw data_error("{}: has neither {} nor {}; choose a repository in the layout of transformers or PEFT",
                   repo.to_string(), kConfigName, kAdapterConfigName);
}

void check_is_adapter(const std::vector<RepoFile>& files, const Repo& repo) {
  if (find_file(files, kAdapterConfigName) != nullptr) return;
  throw data_error("{}: is not an adapter, since it has no {}; choose an adapter in PEFT's layout", repo.to_string(),
                   kAdapterConfigName);
}

void check_has_tokenizer(const std::vector<RepoFile>& files, const Repo& repo) {
  if (find_file(files, kAdapterConfigName) != nullptr || find_file(files, kTokenizerName) != nullptr) return;
  throw data_error("{}: has no {}; choose a repository with this file, or save the model with transformers",
                   repo.to_string(), kTokenizerName);
}

std::vector<RepoFile> select_config_files(const std::vector<RepoFile>& files) {
  std::vector<RepoFile> selected;
  std::ranges::copy_if(files, std::back_inserter(selected), is_config_file);
  return selected;
}

std::vector<RepoFile> select_weight_files(const std::vector<RepoFile>& files, const std::filesystem::path& snapshot) {
  std::vector<RepoFile> selected;
  if (const RepoFile* adapter = find_file(files, kAdapterWeightsName)) selected.push_back(*adapter);
  if (const RepoFile* weights = find_file(files, kWeightsName)) {
    selected.push_back(*weights);
    return selected;
  }
  if (find_file(files, kWeightsIndexName) == nullptr) return selected;
  const auto path = snapshot / kWeightsIndexName;
  const auto index = io::read_json(path);
  std::set<std::string> shards;
  const auto weight_map = index.find("weight_map");
  if (weight_map == index.end() || !weight_map->is_object())
    throw data_error("{}: has no weight_map; report it to the owner of the repository", path.string());
  for (const auto& [tensor, shard] : weight_map->items())
    shards.insert(io::get<std::string>(*weight_map, tensor, path.string()));
  for (const std::string& shard : shards) {
    const RepoFile* const file = find_file(files, shard);
    if (file == nullptr)
      throw data_error("{}: names {}, which the repository lacks; report it to its owner", path.string(),
                       make_excerpt(shard));
    selected.push_back(*file);
  }
  return selected;
}

}  // namespace vlmtrain::hub
