#include "hub/dataset_config.h"

#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include <string_view>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::hub {

namespace {

/// The split of patterns without one.
constexpr const char* kSplitOfPatterns = "train";

/// Returns the YAML between the lines "---" at the start of a text, or "".
std::string extract_front_matter(std::string_view text) {
  constexpr std::string_view kMark = "---";
  if (text.starts_with(io::kUtf8ByteOrderMark)) text.remove_prefix(io::kUtf8ByteOrderMark.size());
  if (!text.starts_with(kMark)) return "";
  const size_t begin = text.find('\n');
  const size_t end = begin == std::string_view::npos ? begin : text.find("\n---", begin);
  return end == std::string_view::npos ? "" : std::string(text.substr(begin + 1, end - begin));
}

std::vector<std::string> parse_patterns(const YAML::Node& node) {
  if (node.IsScalar()) return {node.as<std::string>()};
  std::vector<std::string> patterns;
  for (const auto& entry : node) patterns.push_back(entry.as<std::string>());
  return patterns;
}

/// Parses data_files: a pattern, a list of patterns, or a list of {split, path}.
DatasetConfig parse_config(const YAML::Node& node) {
  DatasetConfig config{.name = node["config_name"].as<std::string>("default"),
                       .is_default = node["default"].as<bool>(false),
                       .folder = node["data_dir"].as<std::string>("")};
  const YAML::Node data_files = node["data_files"];
  if (!data_files) return config;
  if (!data_files.IsSequence() || data_files.size() == 0 || !data_files[0].IsMap()) {
    config.splits.emplace_back(kSplitOfPatterns, parse_patterns(data_files));
    return config;
  }
  for (const auto& entry : data_files)
    config.splits.emplace_back(entry["split"].as<std::string>(kSplitOfPatterns), parse_patterns(entry["path"]));
  return config;
}

}  // namespace

std::vector<DatasetConfig> parse_dataset_configs(const std::string& readme, const std::string& source) {
  std::vector<DatasetConfig> configs;
  try {
    const YAML::Node metadata = YAML::Load(extract_front_matter(readme));
    if (!metadata.IsMap()) return configs;
    const YAML::Node entries = metadata["configs"];
    for (const auto& entry : entries) configs.push_back(parse_config(entry));
  } catch (const YAML::Exception& error) {
    constexpr int kFirstLine = 2;  // after the line "---"
    throw data_error("{}: its metadata is invalid{}; report it to the owner of the data set", source,
                     error.mark.is_null() ? "" : fmt::format(" at line {}", error.mark.line + kFirstLine));
  }
  return configs;
}

}  // namespace vlmtrain::hub
