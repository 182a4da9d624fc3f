#include "hub/dataset_files.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "hub/dataset_config.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/base/regex.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::hub {

namespace {

constexpr std::string_view kReadme = "README.md";
constexpr std::string_view kDefaultSplit = "train";

/// The formats of io::open_records(), the preferred one first.
constexpr std::array<std::string_view, 4> kDataExtensions{".parquet", ".tar", ".jsonl", ".json"};

/// Words of file and folder names, and the splits that they mean (datasets/data_files.py).
struct SplitWord {
  std::string_view word, split;
};
constexpr SplitWord kSplitWords[] = {{"train", "train"},      {"training", "train"}, {"validation", "validation"},
                                     {"valid", "validation"}, {"val", "validation"}, {"dev", "validation"},
                                     {"test", "test"},        {"testing", "test"},   {"evaluation", "test"},
                                     {"eval", "test"}};

std::string_view get_extension(std::string_view path) {
  const size_t slash = path.rfind('/');
  const size_t dot = path.rfind('.');
  return dot == std::string_view::npos || (slash != std::string_view::npos && dot < slash) ? "" : path.substr(dot);
}

bool is_data_file(const RepoFile& file) {
  // Descriptions that older versions of `datasets` wrote.
  if (file.path.ends_with("dataset_infos.json") || file.path.ends_with("dataset_dict.json")) return false;
  return std::ranges::find(kDataExtensions, get_extension(file.path)) != kDataExtensions.end();
}

/// Returns the split that a word of the path names, or "".
std::string_view find_split_in_name(std::string_view path) {
  size_t begin = 0;
  while (begin < path.size()) {
    const size_t end = std::min(path.find_first_of("-._/ 0123456789", begin), path.size());
    const auto* const entry = std::ranges::find(kSplitWords, path.substr(begin, end - begin), &SplitWord::word);
    if (entry != std::end(kSplitWords)) return entry->split;
    begin = end + 1;
  }
  return "";
}

/// Returns a regular expression for a pattern of fsspec: * and ? match within a folder, ** across
/// folders, {a,b} either text. Throws std::exception for an invalid pattern.
Regex compile_pattern(const std::string& pattern) {
  std::string expression;
  int depth = 0;  // of braces
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char letter = pattern[i];
    if (pattern.compare(i, 3, "**/") == 0) {
      expression += "(?:.*/)?";
      i += 2;
    } else if (pattern.compare(i, 2, "**") == 0) {
      expression += ".*";
      ++i;
    } else if (letter == '*') {
      expression += "[^/]*";
    } else if (letter == '?') {
      expression += "[^/]";
    } else if (letter == '[' || letter == ']' || letter == '-') {
      expression += letter;
    } else if (letter == '!' && i > 0 && pattern[i - 1] == '[') {
      expression += '^';
    } else if (letter == '{') {
      expression += "(?:";
      ++depth;
    } else if (letter == ',' && depth > 0) {
      expression += '|';
    } else if (letter == '}' && depth > 0) {
      expression += ')';
      --depth;
    } else {
      expression += fmt::format("\\x{{{:x}}}", static_cast<unsigned char>(letter));
    }
  }
  return Regex(expression, {.matches_whole_text = true});
}

/// Joins paths of a repository. Both may begin with "./".
std::string join_path(std::string folder, std::string path) {
  for (std::string* part : {&folder, &path}) {
    if (part->starts_with("./")) part->erase(0, 2);
  }
  if (folder.empty() || folder == ".") return path;
  return folder + (folder.back() == '/' ? "" : "/") + path;
}

/// Returns the first names for a message.
std::string join_names(const std::vector<std::string>& names, std::string_view separator) {
  constexpr size_t kMaxNames = 20;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kMaxNames); ++i)
    text += fmt::format("{}{}", i == 0 ? "" : separator, make_excerpt(names[i]));
  return names.size() > kMaxNames ? text + fmt::format(" and {} more", names.size() - kMaxNames) : text;
}

/// Returns the configuration that the reference names, or the default one; nothing if README.md
/// has none and the reference names none.
DatasetConfig choose_config(const std::vector<DatasetConfig>& configs, const DatasetReference& reference) {
  // Without metadata, the name of a configuration is a folder.
  if (configs.empty())
    return {.name = reference.config, .folder = reference.config == "default" ? "" : reference.config};
  const auto is_chosen = [&](const DatasetConfig& config) {
    return reference.config.empty() ? config.is_default || config.name == "default" || configs.size() == 1
                                    : config.name == reference.config;
  };
  const auto config = std::ranges::find_if(configs, is_chosen);
  if (config != configs.end()) return *config;
  std::vector<std::string> names;
  names.reserve(configs.size());
  for (const DatasetConfig& known : configs) names.push_back(known.name);
  throw usage_error("{}: {}; choose one of its configurations: hf://datasets/{}/CONFIG with {}",
                    reference.repo.to_string(),
                    reference.config.empty() ? "has no default configuration"
                                             : "has no configuration " + make_excerpt(reference.config),
                    reference.repo.id, join_names(names, ", "));
}

using SplitFiles = std::vector<std::pair<std::string, std::vector<RepoFile>>>;

std::vector<RepoFile>& get_split(SplitFiles& splits, std::string_view name) {
  const auto split = std::ranges::find(splits, name, &SplitFiles::value_type::first);
  return split != splits.end() ? split->second : splits.emplace_back(name, std::vector<RepoFile>()).second;
}

/// Returns the files that match the patterns of each split. The path of a folder matches all files
/// in it.
SplitFiles match_patterns(const std::vector<RepoFile>& files, const DatasetConfig& config) {
  const auto compile_config_pattern = [&](const std::string& pattern) {
    try {
      return compile_pattern(join_path(config.folder, pattern));
    } catch (const std::exception&) {
      throw data_error("{}: the pattern {} of configuration {} is invalid; report it to the owner of the data set",
                       kReadme, make_excerpt(pattern), make_excerpt(config.name));
    }
  };
  SplitFiles splits;
  for (const auto& [name, patterns] : config.splits) {
    auto& selected = get_split(splits, name);
    for (const std::string& pattern : patterns) {
      const Regex regex = compile_config_pattern(pattern);
      const std::string folder = join_path(join_path(config.folder, pattern), "");
      std::ranges::copy_if(files, std::back_inserter(selected), [&](const RepoFile& file) {
        const bool is_match =
            regex.search(file.path).has_value() || (!pattern.empty() && file.path.starts_with(folder));
        return is_match && std::ranges::find(selected, file) == selected.end();
      });
    }
  }
  return splits;
}

/// Returns the data files in the configuration's folder, by the splits in their names.
SplitFiles divide_by_names(const std::vector<RepoFile>& files, const DatasetConfig& config) {
  const std::string prefix = join_path(config.folder, "");
  SplitFiles splits;
  std::vector<RepoFile> without_split;
  for (const RepoFile& file : files) {
    if (!file.path.starts_with(prefix) || !is_data_file(file)) continue;
    const std::string_view split = find_split_in_name(std::string_view(file.path).substr(prefix.size()));
    (split.empty() ? without_split : get_split(splits, split)).push_back(file);
  }
  if (splits.empty() && !without_split.empty()) splits.emplace_back(kDefaultSplit, std::move(without_split));
  return splits;
}

/// Returns the files of the preferred format. Logs the number of others.
std::vector<RepoFile> select_format(std::vector<RepoFile> files, const std::string& name) {
  for (const auto extension : kDataExtensions) {
    std::vector<RepoFile> selected;
    std::ranges::copy_if(files, std::back_inserter(selected),
                         [&](const RepoFile& file) { return get_extension(file.path) == extension; });
    if (selected.empty()) continue;
    if (selected.size() < files.size()) {
      spdlog::warn("{}: {} of other formats than {} are not read", name,
                   pluralize(static_cast<int64_t>(files.size() - selected.size()), "file"), extension);
    }
    std::ranges::sort(selected,
                      [](const RepoFile& a, const RepoFile& b) { return precedes_in_natural_order(a.path, b.path); });
    return selected;
  }
  throw usage_error("{}: its files, such as {}, have none of the formats {}; choose another data set", name,
                    make_excerpt(files.front().path), fmt::join(kDataExtensions, ", "));
}

}  // namespace

std::vector<RepoFile> select_metadata_files(const std::vector<RepoFile>& files) {
  std::vector<RepoFile> selected;
  std::ranges::copy_if(files, std::back_inserter(selected), [](const RepoFile& file) { return file.path == kReadme; });
  return selected;
}

std::vector<RepoFile> select_split_files(const std::vector<RepoFile>& files, const std::filesystem::path& snapshot,
                                         const DatasetReference& reference) {
  const std::string name = reference.repo.to_string();
  const auto readme = snapshot / kReadme;
  std::error_code error;
  const auto configs = std::filesystem::is_regular_file(readme, error)
                           ? parse_dataset_configs(io::read_file(readme), readme.string())
                           : std::vector<DatasetConfig>();
  const DatasetConfig config = choose_config(configs, reference);
  SplitFiles splits = config.splits.empty() ? divide_by_names(files, config) : match_patterns(files, config);
  std::erase_if(splits, [](const auto& split) { return split.second.empty(); });
  if (splits.empty() && !config.splits.empty()) {
    throw usage_error("{}: no file matches the patterns of configuration {} in {}; choose another configuration", name,
                      make_excerpt(config.name), kReadme);
  }
  if (splits.empty()) {
    throw usage_error("{}: has no {} files{}; choose another data set", name, fmt::join(kDataExtensions, ", "),
                      config.folder.empty() ? "" : " in " + make_excerpt(config.folder));
  }
  const std::string_view split_name = reference.split.empty() ? kDefaultSplit : std::string_view(reference.split);
  const auto split = std::ranges::find(splits, split_name, &SplitFiles::value_type::first);
  if (split == splits.end()) {
    std::vector<std::string> names;
    for (const auto& entry : splits) names.push_back(entry.first);
    throw usage_error("{}: has no split {}; append one of :{}", name, make_excerpt(split_name),
                      join_names(names, ", :"));
  }
  return select_format(split->second, name);
}

}  // namespace vlmtrain::hub
