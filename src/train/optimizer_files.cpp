#include "train/optimizer_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <system_error>

#include "vlmtrain/base/error.h"

namespace vlmtrain::train {

namespace {

// Of a part's metadata.
constexpr const char* kShardKey = "part";
constexpr const char* kStepKey = "step";

std::string get_metadata(const io::SafetensorsFile& file, const char* key) {
  const auto it = file.metadata().find(key);
  return it == file.metadata().end() ? "?" : it->second;
}

/// As many parts as the name of any of them says; nothing where there are none.
std::optional<int64_t> count_shards(const std::filesystem::path& folder) {
  std::optional<int64_t> num_shards;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    long long number = 0, count = 0;
    if (std::sscanf(name.c_str(), "optimizer-%5lld-of-%5lld.safetensors", &number, &count) != 2) continue;
    if (number < 1 || number > count || name != make_optimizer_file_name(number - 1, count)) continue;
    if (num_shards && *num_shards != count) {
      throw data_error("{}: has an optimizer's state in {} parts and one in {}; copy the checkpoint again",
                       folder.string(), std::min(*num_shards, int64_t{count}), std::max(*num_shards, int64_t{count}));
    }
    num_shards = count;
  }
  return num_shards;
}

}  // namespace

std::string make_optimizer_file_name(int64_t rank, int64_t count) {
  return count == 1 ? "optimizer.safetensors" : fmt::format("optimizer-{:05}-of-{:05}.safetensors", rank + 1, count);
}

std::vector<std::filesystem::path> find_optimizer_files(const std::filesystem::path& trainer_state) {
  const auto unsharded_file = trainer_state / make_optimizer_file_name(0, 1);
  const auto num_shards = count_shards(trainer_state);
  if (num_shards && std::filesystem::exists(unsharded_file)) {
    throw data_error("{}: has an optimizer's state in {} parts and a whole one; copy the checkpoint again",
                     trainer_state.string(), *num_shards);
  }
  if (!num_shards) return {unsharded_file};
  std::vector<std::filesystem::path> files;
  for (int64_t rank = 0; rank < *num_shards; ++rank) {
    files.push_back(trainer_state / make_optimizer_file_name(rank, *num_shards));
    if (std::filesystem::exists(files.back())) continue;
    throw data_error("{}: is missing, one of the {} parts of the optimizer's state; copy the checkpoint again",
                     files.back().string(), *num_shards);
  }
  return files;
}

std::vector<io::SafetensorsFile> open_optimizer_files(const std::filesystem::path& trainer_state) {
  std::vector<io::SafetensorsFile> files;
  for (const auto& path : find_optimizer_files(trainer_state)) files.emplace_back(path);
  if (files.size() == 1) return files;
  const std::string step = get_metadata(files.front(), kStepKey);
  for (size_t i = 0; i < files.size(); ++i) {
    if (get_metadata(files[i], kShardKey) != std::to_string(i + 1)) {
      throw data_error("{}: holds part {} of the optimizer's state; copy the checkpoint again",
                       files[i].path().string(), get_metadata(files[i], kShardKey));
    }
    if (get_metadata(files[i], kStepKey) != step) {
      throw data_error("{}: is of step {}, and {} of step {}; copy the checkpoint again", files[i].path().string(),
                       get_metadata(files[i], kStepKey), files.front().path().filename().string(), step);
    }
  }
  return files;
}

std::string format_optimizer_files_name(const std::filesystem::path& trainer_state) {
  const auto files = find_optimizer_files(trainer_state);
  if (files.size() == 1) return files.front().string();
  return (trainer_state / fmt::format("optimizer-*-of-{:05}.safetensors", files.size())).string();
}

std::map<std::string, std::string> make_shard_metadata(int64_t rank, int64_t step) {
  return {{"format", "pt"}, {kShardKey, std::to_string(rank + 1)}, {kStepKey, std::to_string(step)}};
}

}  // namespace vlmtrain::train
