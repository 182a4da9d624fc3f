#include "io/data_files.h"

#include <glob.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <string>
#include <string_view>
#include <system_error>

#include "io/tar_part.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/natural_order.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::io {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 3> kShardEndings{".parquet", ".tar", ".jsonl"};

/// Each {a,b} doubles what is looked for.
void check_braces(const std::string& pattern) {
  constexpr int64_t kMostPatterns = 10'000;
  int64_t patterns = 1;
  std::vector<int64_t> open;
  for (const char letter : pattern) {
    if (letter == '{') open.push_back(1);
    if (letter == ',' && !open.empty()) ++open.back();
    if (letter != '}' || open.empty()) continue;
    patterns *= open.back();
    open.pop_back();
    if (patterns > kMostPatterns) {
      throw data_error("{}: its braces stand for more than {} patterns; name a folder, or use *", excerpt(pattern),
                       kMostPatterns);
    }
  }
}

std::vector<fs::path> matching(const fs::path& pattern) {
  check_braces(pattern.native());
  glob_t found{};
  // A folder that is not there matches nothing; one that cannot be read might.
  const auto stops = [](const char* /*folder*/, int error) { return error == ENOENT || error == ENOTDIR ? 0 : 1; };
  const int status = glob(pattern.c_str(), GLOB_BRACE | GLOB_TILDE, stops, &found);
  std::vector<fs::path> files(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  globfree(&found);
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

/// Files of data sets on the Hub begin with their split's name.
std::vector<std::string> splits_of(const std::vector<fs::path>& files) {
  std::vector<std::string> splits;
  for (const char* const split : {"train", "validation", "valid", "val", "test", "dev"}) {
    const auto is_of = [&](const fs::path& file) {
      const std::string name = file.filename().string();
      return name.starts_with(split + std::string("-")) || file.stem() == split;
    };
    if (std::ranges::any_of(files, is_of)) splits.emplace_back(split);
  }
  return splits;
}

std::vector<fs::path> shards_in(const fs::path& folder) {
  std::array<std::vector<fs::path>, kShardEndings.size()> shards;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (entry->path().filename().native().starts_with('.')) continue;
    const auto* const ending = std::ranges::find(kShardEndings, lower_case(entry->path().extension().native()));
    if (ending != kShardEndings.end()) {
      shards[static_cast<size_t>(ending - kShardEndings.begin())].push_back(entry->path());
    }
  }
  if (error) throw data_error("{} cannot be read: {}", folder.string(), error.message());
  const auto is_there = [](const auto& files) { return !files.empty(); };
  const auto first = std::ranges::find_if(shards, is_there);
  if (first == shards.end()) {
    throw data_error("{} is a folder without {} files; name a file, a pattern such as {}, or the folder of the shards",
                     folder.string(), fmt::join(kShardEndings, ", "), (folder / "data/*.parquet").string());
  }
  if (std::ranges::count_if(shards, is_there) > 1) {
    throw data_error("{} is a folder with data of several formats; name those that are meant, such as {}",
                     folder.string(), (folder / "*.parquet").string());
  }
  if (const auto splits = splits_of(*first); splits.size() > 1) {
    throw data_error("{} is a folder with the splits {}; name the one that is meant, such as {}", folder.string(),
                     fmt::join(splits, ", "),
                     (folder / (splits.front() + "-*" + first->front().extension().string())).string());
  }
  return *first;
}

}  // namespace

std::vector<fs::path> data_files(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  std::vector<fs::path> files;
  if (fs::is_directory(status)) {
    files = shards_in(path);
  } else if (fs::exists(status) || path.native().find_first_of("*?[{") == std::string::npos) {
    return {path};
  } else {
    files = matching(path);
  }
  std::ranges::sort(files, comes_before, [](const fs::path& file) { return file.string(); });
  return files;
}

}  // namespace vlmtrain::io
