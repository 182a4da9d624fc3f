#include "train/optimizer_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <optional>
#include <system_error>

#include "vlmtrain/base/error.h"

namespace vlmtrain::train {

namespace {

/// As many parts as the name of any of them says; nothing where there are none.
std::optional<int64_t> parts_in(const std::filesystem::path& folder) {
  std::optional<int64_t> parts;
  std::error_code error;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    long long number = 0, count = 0;
    if (std::sscanf(name.c_str(), "optimizer-%5lld-of-%5lld.safetensors", &number, &count) != 2) continue;
    if (number < 1 || number > count || name != optimizer_file_name(number - 1, count)) continue;
    if (parts && *parts != count) {
      throw data_error("{}: has an optimizer's state in {} parts and one in {}; copy the checkpoint again",
                       folder.string(), std::min(*parts, int64_t{count}), std::max(*parts, int64_t{count}));
    }
    parts = count;
  }
  return parts;
}

}  // namespace

std::string optimizer_file_name(int64_t rank, int64_t count) {
  return count == 1 ? "optimizer.safetensors" : fmt::format("optimizer-{:05}-of-{:05}.safetensors", rank + 1, count);
}

std::vector<std::filesystem::path> optimizer_files(const std::filesystem::path& trainer_state) {
  const auto whole = trainer_state / optimizer_file_name(0, 1);
  const auto parts = parts_in(trainer_state);
  if (parts && std::filesystem::exists(whole)) {
    throw data_error("{}: has an optimizer's state in {} parts and a whole one; copy the checkpoint again",
                     trainer_state.string(), *parts);
  }
  if (!parts) return {whole};
  std::vector<std::filesystem::path> files;
  for (int64_t rank = 0; rank < *parts; ++rank) {
    files.push_back(trainer_state / optimizer_file_name(rank, *parts));
    if (std::filesystem::exists(files.back())) continue;
    throw data_error("{}: is missing, one of the {} parts of the optimizer's state; copy the checkpoint again",
                     files.back().string(), *parts);
  }
  return files;
}

}  // namespace vlmtrain::train
