#include "io/dataset/data_files.h"

#include <glob.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

#include "io/dataset/tar_files.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::io {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 3> kShardExtensions{".parquet", ".tar", ".jsonl"};

/// Bounds the number of patterns that braces expand to: each {a,b} doubles it.
void check_braces(const std::string& pattern) {
  constexpr int64_t kMaxPatterns = 10'000;
  int64_t num_patterns = 1;
  std::vector<int64_t> alternatives;
  for (const char c : pattern) {
    if (c == '{') alternatives.push_back(1);
    if (c == ',' && !alternatives.empty()) ++alternatives.back();
    if (c != '}' || alternatives.empty()) continue;
    num_patterns *= alternatives.back();
    alternatives.pop_back();
    if (num_patterns > kMaxPatterns) {
      throw data_error("{}: its braces stand for more than {} patterns; name a folder, or use *", make_excerpt(pattern),
                       kMaxPatterns);
    }
  }
}

std::vector<fs::path> expand_pattern(const fs::path& pattern) {
  check_braces(pattern.native());
  glob_t matches{};
  // A missing folder matches nothing; an unreadable one might match.
  const auto on_error = [](const char* /*folder*/, int error) { return error == ENOENT || error == ENOTDIR ? 0 : 1; };
  const int status = glob(pattern.c_str(), GLOB_BRACE | GLOB_TILDE, on_error, &matches);
  std::vector<fs::path> files(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  globfree(&matches);
  if (status != 0 && status != GLOB_NOMATCH) {
    throw data_error("{}: a folder of this pattern cannot be read", pattern.string());
  }
  std::erase_if(files, [](const fs::path& file) {
    std::error_code error;
    return fs::is_directory(file, error);
  });
  if (files.empty()) {
    throw data_error("{} matches no file; * stands for any part of a name, not for a slash (docs/data.md)",
                     pattern.string());
  }
  return files;
}

/// Returns the splits among the files. File names of data sets on the Hub begin with their split.
std::vector<std::string> find_splits(const std::vector<fs::path>& files) {
  std::vector<std::string> splits;
  for (const char* const split : {"train", "validation", "valid", "val", "test", "dev"}) {
    const auto is_of_split = [&](const fs::path& file) {
      const std::string name = file.filename().string();
      return name.starts_with(split + std::string("-")) || file.stem() == split;
    };
    if (std::ranges::any_of(files, is_of_split)) splits.emplace_back(split);
  }
  return splits;
}

std::vector<fs::path> find_shards(const fs::path& folder) {
  std::array<std::vector<fs::path>, kShardExtensions.size()> shards;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename().native().starts_with('.')) continue;
    const auto* const extension =
        std::ranges::find(kShardExtensions, to_lower_ascii(entry->path().extension().native()));
    if (extension != kShardExtensions.end()) {
      shards[static_cast<size_t>(extension - kShardExtensions.begin())].push_back(entry->path());
    }
  }
  if (error) throw data_error("{} cannot be read: {}", folder.string(), error.message());
  const auto is_non_empty = [](const auto& files) { return !files.empty(); };
  const auto first = std::ranges::find_if(shards, is_non_empty);
  if (first == shards.end()) {
    throw data_error("{} is a folder without {} files; name a file, a pattern such as {}, or the folder of the shards",
                     folder.string(), fmt::join(kShardExtensions, ", "), (folder / "data/*.parquet").string());
  }
  if (std::ranges::count_if(shards, is_non_empty) > 1) {
    throw data_error("{} is a folder with data of several formats; name those that are meant, such as {}",
                     folder.string(), (folder / "*.parquet").string());
  }
  if (const auto splits = find_splits(*first); splits.size() > 1) {
    throw data_error("{} is a folder with the splits {}; name the one that is meant, such as {}", folder.string(),
                     fmt::join(splits, ", "),
                     (folder / (splits.front() + "-*" + first->front().extension().string())).string());
  }
  return *first;
}

}  // namespace

std::vector<fs::path> find_data_files(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  std::vector<fs::path> files;
  if (fs::is_directory(status)) {
    files = find_shards(path);
  } else if (fs::exists(status) || path.native().find_first_of("*?[{") == std::string::npos) {
    return {path};
  } else {
    files = expand_pattern(path);
  }
  std::ranges::sort(files, natural_less, [](const fs::path& file) { return file.string(); });
  return files;
}

}  // namespace vlmtrain::io
