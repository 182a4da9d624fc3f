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
constexpr const char* kPart = "part";
constexpr const char* kStep = "step";

std::string text_of(const io::SafetensorsFile& file, const char* key) {
  const auto found = file.metadata().find(key);
  return found == file.metadata().end() ? "?" : found->second;
}

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

std::vector<io::SafetensorsFile> open_optimizer_files(const std::filesystem::path& trainer_state) {
  std::vector<io::SafetensorsFile> files;
  for (const auto& path : optimizer_files(trainer_state)) files.emplace_back(path);
  if (files.size() == 1) return files;
  const std::string step = text_of(files.front(), kStep);
  for (size_t i = 0; i < files.size(); ++i) {
    if (text_of(files[i], kPart) != std::to_string(i + 1)) {
      throw data_error("{}: holds part {} of the optimizer's state; copy the checkpoint again",
                       files[i].path().string(), text_of(files[i], kPart));
    }
    if (text_of(files[i], kStep) != step) {
      throw data_error("{}: is of step {}, and {} of step {}; copy the checkpoint again", files[i].path().string(),
                       text_of(files[i], kStep), files.front().path().filename().string(), step);
    }
  }
  return files;
}

std::string optimizer_files_name(const std::filesystem::path& trainer_state) {
  const auto files = optimizer_files(trainer_state);
  if (files.size() == 1) return files.front().string();
  return (trainer_state / fmt::format("optimizer-*-of-{:05}.safetensors", files.size())).string();
}

std::map<std::string, std::string> metadata_of_part(int64_t rank, int64_t step) {
  return {{"format", "pt"}, {kPart, std::to_string(rank + 1)}, {kStep, std::to_string(step)}};
}

}  // namespace vlmtrain::train
