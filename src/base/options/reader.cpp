#include "base/options/reader.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <string_view>

#include "base/options/declarations.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain {

namespace {

// Configurations have some kilobytes. The limit stops the reading of a data file or an endless pipe
// that was given by mistake. Chosen without measurement.
constexpr size_t kMaxConfigBytes = size_t{16} << 20;

bool is_descriptor_path(const std::filesystem::path& path) {
  const std::string name = path.string();
  return name == "/dev/stdin" || name.starts_with("/dev/fd/") || name.starts_with("/proc/self/fd/");
}

void reject_special_file(const std::filesystem::path& path) {
  const std::string_view kind = describe_non_regular_file(path);
  if (kind.empty() || (is_descriptor_path(path) && kind != "a folder")) return;
  throw usage_error("{}: is {}; give an existing file to --config, or /dev/stdin", path.string(), kind);
}

/// Reads to the end of the file, or some chunks past `bytes`, because a pipe may never end.
std::string read_prefix(std::istream& file, size_t bytes) {
  std::string text;
  constexpr size_t kChunkBytes = size_t{1} << 16;
  while (file && text.size() < bytes) {
    const size_t size = text.size();
    text.resize(size + kChunkBytes);
    file.read(text.data() + size, kChunkBytes);
    text.resize(size + static_cast<size_t>(file.gcount()));
  }
  return text;
}

/// Maximum number of reported errors in a file, for files that are not a configuration. Not tuned.
constexpr size_t kMaxReportedErrors = 100;

bool contains_nul(const YAML::Node& value) {
  const auto scalar_has_nul = [](const YAML::Node& node) {
    return node.IsScalar() && node.Scalar().find('\0') != std::string::npos;
  };
  const auto entry_has_nul = [&](const auto& entry) {
    return scalar_has_nul(entry.first) || scalar_has_nul(entry.second);
  };
  if (value.IsMap()) return std::any_of(value.begin(), value.end(), entry_has_nul);
  return scalar_has_nul(value) || (value.IsSequence() && std::any_of(value.begin(), value.end(), scalar_has_nul));
}

/// Sets the options that one source sets: a file or the command line.
class SourceReader {
 public:
  /// Adds messages to `errors`. Both arguments must outlive the reader.
  SourceReader(const OptionDeclarations& declarations, std::vector<std::string>& errors)
      : declarations_(declarations), errors_(errors) {}

  /// Sets the options in the YAML text of a file.
  void read_file(const std::string& text, const std::string& file);

  /// Sets the options of the command line, each as key=value.
  void read_overrides(const std::vector<std::string>& overrides);

 private:
  /// Where the source has set a key.
  struct UsedName {
    std::string name;  // the key itself or an alias
    int line;          // from 1; 0: the command line, where the last value counts
  };

  void set_options(const YAML::Node& node, const std::string& prefix, const std::string& file);
  void set_option(const std::string& name, const YAML::Node& value, const std::string& location, int line);
  bool is_foreign_section(const std::string& key, const YAML::Node& map) const;
  std::optional<std::string> find_error(const std::string& key, const std::string& name, const YAML::Node& value,
                                        int line);
  std::optional<std::string> register_name(const std::string& key, const std::string& name, int line);
  std::optional<std::string> register_entries(const std::string& key, const YAML::Node& map);
  size_t count_override_words(const std::vector<std::string>& words, size_t first) const;

  const OptionDeclarations& declarations_;
  std::vector<std::string>& errors_;
  std::map<std::string, UsedName> used_names_;  // by key
};

/// Returns an error message if the source has already set `key`: by another name, or in another
/// line. Otherwise registers `name`.
std::optional<std::string> SourceReader::register_name(const std::string& key, const std::string& name, int line) {
  const auto [used_name, is_new] = used_names_.try_emplace(key, UsedName{name, line});
  if (is_new) return std::nullopt;
  if (used_name->second.name != name)
    return fmt::format("{} and {} are the same option; keep {}", used_name->second.name, name, key);
  if (line == 0) return std::nullopt;
  return fmt::format("{} occurs twice, first in line {}; keep one", make_excerpt(name), used_name->second.line);
}

/// Registers the entries of `map`, the value of `key` in a file.
std::optional<std::string> SourceReader::register_entries(const std::string& key, const YAML::Node& map) {
  for (const auto& entry : map) {
    if (!entry.first.IsScalar()) continue;
    const std::string name = key + "." + entry.first.Scalar();
    if (auto error = register_name(name, name, entry.first.Mark().line + 1)) return error;
  }
  return std::nullopt;
}

/// Sets the option `name`, a key or an alias, or one entry of a map. Adds a message to `errors_` if
/// that fails. `location` is the start of the message, such as "train.yaml:3"; `line` is as
/// UsedName::line.
void SourceReader::set_option(const std::string& name, const YAML::Node& value, const std::string& location, int line) {
  const std::string key = declarations_.resolve_alias(name);
  if (const auto error = find_error(key, name, value, line)) errors_.push_back(fmt::format("{}: {}", location, *error));
}

/// Stores the value and returns nothing, or returns an error message.
std::optional<std::string> SourceReader::find_error(const std::string& key, const std::string& name,
                                                    const YAML::Node& value, int line) {
  const auto* const option = declarations_.find_option(key);
  if (auto error = register_name(key, name, line)) return error;
  if (option != nullptr && option->set_entry && value.IsMap() && line > 0) {
    if (auto error = register_entries(key, value)) return error;
  }
  const auto add_name = [](const std::string& named, const std::optional<std::string>& error) {
    return error ? std::optional(fmt::format("{}: {}", named, *error)) : std::nullopt;
  };
  const size_t dot_pos = key.rfind('.');
  const auto* const map_option =
      option == nullptr && dot_pos != std::string::npos ? declarations_.find_option(key.substr(0, dot_pos)) : nullptr;
  if (map_option != nullptr && map_option->set_entry)
    return add_name(make_excerpt(key), map_option->set_entry(key.substr(dot_pos + 1), value));
  if (option == nullptr)
    return fmt::format("unknown key {}; {}", make_excerpt(key), declarations_.make_key_suggestion(key));
  if (contains_nul(value)) return add_name(name, "a value cannot contain a NUL character");
  return add_name(name, option->set(value));
}

/// Sets the options in `node`, a map. `prefix` is the section of its keys, or "" at the top level.
/// Recurses into sections, and into unknown maps at the top level to report their keys. Does not
/// recurse further, because YAML aliases may refer to nodes around them or expand exponentially.
void SourceReader::set_options(const YAML::Node& node, const std::string& prefix, const std::string& file) {
  std::map<std::string, int> line_by_key;
  for (const auto& entry : node) {
    if (errors_.size() >= kMaxReportedErrors) return;
    if (!entry.first.IsScalar()) {
      errors_.push_back(
          fmt::format("{}:{}: a key must be a word, not a list or section", file, entry.first.Mark().line + 1));
      continue;
    }
    const std::string key = prefix.empty() ? entry.first.Scalar() : prefix + "." + entry.first.Scalar();
    const int line = entry.first.Mark().line + 1;
    const std::string location = fmt::format("{}:{}", file, line);
    if (const auto [first, is_new] = line_by_key.try_emplace(key, line); !is_new) {
      errors_.push_back(
          fmt::format("{}: {} occurs twice, first in line {}; keep one", location, make_excerpt(key), first->second));
    } else if (entry.second.IsMap() && declarations_.find_option(declarations_.resolve_alias(key)) == nullptr &&
               (declarations_.is_section(key) || (prefix.empty() && is_foreign_section(key, entry.second)))) {
      set_options(entry.second, key, file);
    } else if (entry.second.IsNull() && declarations_.is_section(key)) {
      continue;
    } else if (declarations_.is_section(key)) {
      errors_.push_back(
          fmt::format("{}: {} is a section, not {}; write its keys below it, indented, with a space after each colon",
                      location, key, entry.second.IsScalar() ? make_excerpt(entry.second.Scalar()) : "a list"));
    } else {
      set_option(key, entry.second, location, line);
    }
  }
}

/// Returns whether the keys of an undeclared section are reported, instead of the section itself.
bool SourceReader::is_foreign_section(const std::string& key, const YAML::Node& map) const {
  return map.size() > 0 && !declarations_.hints.contains(key);
}

void SourceReader::read_file(const std::string& text, const std::string& file) {
  try {
    const auto yaml_documents = YAML::LoadAll(text);
    if (yaml_documents.size() > 1) {
      throw usage_error("{}: contains {} YAML documents; a configuration is one document: remove the lines ---", file,
                        yaml_documents.size());
    }
    const YAML::Node root = yaml_documents.empty() ? YAML::Node() : yaml_documents.front();
    if (root.IsMap()) {
      set_options(root, "", file);
    } else if (!root.IsNull()) {
      errors_.push_back(fmt::format("{}: must contain sections of keys; see docs/reference/config.md", file));
    }
  } catch (const YAML::DeepRecursion& error) {
    throw usage_error("{}:{}: lists and sections are nested too deeply; a configuration has sections of keys", file,
                      error.mark.line + 1);
  } catch (const YAML::Exception& error) {
    throw usage_error("{}:{}: {}", file, error.mark.line + 1, describe_yaml_error(text, error.mark.line, error.msg));
  }
}

/// Returns the number of arguments, starting at `first`, that form one override split by spaces:
/// 2 for `key value`, 3 for `key = value`, 0 for anything else.
size_t SourceReader::count_override_words(const std::vector<std::string>& words, size_t first) const {
  if (declarations_.find_option(declarations_.resolve_alias(words[first])) == nullptr || first + 1 == words.size())
    return 0;
  const std::string& second_word = words[first + 1];
  if (second_word == "=") return first + 2 < words.size() ? 3 : 0;
  return second_word.find('=') == std::string::npos ? 2 : 0;
}

void SourceReader::read_overrides(const std::vector<std::string>& overrides) {
  for (size_t i = 0; i < overrides.size(); ++i) {
    const auto& override_text = overrides[i];
    const auto equals_pos = override_text.find('=');
    if (const size_t num_words = count_override_words(overrides, i); num_words > 0) {
      errors_.push_back(fmt::format("{0}: an override is one argument without spaces: {0}={1}", override_text,
                                    make_excerpt(overrides[i + num_words - 1])));
      i += num_words - 1;
      continue;
    }
    if (equals_pos == std::string::npos || equals_pos == 0) {
      errors_.push_back(fmt::format("{}: an override is written key=value, such as {}=10", make_excerpt(override_text),
                                    keys::training::kMaxSteps));
      continue;
    }
    try {
      const std::string key = override_text.substr(0, equals_pos);
      const auto values = YAML::LoadAll(override_text.substr(equals_pos + 1));
      if (values.size() > 1) {
        errors_.push_back(
            fmt::format("command line: {}: the value contains {} YAML documents; an override has one value",
                        make_excerpt(key), values.size()));
      } else {
        set_option(key, values.empty() ? YAML::Node() : values.front(), "command line", /*line=*/0);
      }
    } catch (const YAML::DeepRecursion&) {
      errors_.push_back(fmt::format("command line: {}: lists are nested too deeply; write a value or a flat list",
                                    make_excerpt(override_text)));
    } catch (const YAML::Exception& error) {
      errors_.push_back(fmt::format("command line: {}: the value is not YAML: {}; close brackets, or quote the value",
                                    make_excerpt(override_text), make_excerpt(error.msg)));
    }
  }
}

}  // namespace

std::string read_config_text(const std::filesystem::path& path) {
  reject_special_file(path);
  std::ifstream file(path, std::ios::binary);
  if (!file) throw usage_error("{}: cannot be read; give an existing file to --config", path.string());
  std::string text = read_prefix(file, kMaxConfigBytes + 1);
  if (file.bad()) throw usage_error("{}: cannot be read completely; check the disk or network", path.string());
  if (text.size() > kMaxConfigBytes) {
    throw usage_error("{}: is longer than {} bytes; give a configuration to --config", path.string(), kMaxConfigBytes);
  }
  constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
  if (text.starts_with(kByteOrderMark)) text.erase(0, kByteOrderMark.size());
  if (text.starts_with("\xFF\xFE") || text.starts_with("\xFE\xFF")) {
    throw usage_error("{0}: is UTF-16; write it as UTF-8: iconv -f UTF-16 -t UTF-8 {0}", path.string());
  }
  return text;
}

std::string describe_yaml_error(std::string_view text, int line, std::string_view reason) {
  const auto get_line = [&](int line_index) {
    std::string_view remaining_text = text;
    for (int i = 0; i < line_index && !remaining_text.empty(); ++i) {
      remaining_text.remove_prefix(std::min(remaining_text.find('\n'), remaining_text.size() - 1) + 1);
    }
    return remaining_text.substr(0, remaining_text.find('\n'));
  };
  // The parser reports the line where it stopped, which may be the line after the error.
  for (const int candidate : {line, line - 1}) {
    if (candidate < 0) continue;
    const std::string_view content = get_line(candidate);
    if (content.substr(0, content.find_first_not_of(" \t")).find('\t') != std::string_view::npos) {
      return fmt::format("{} is indented with a tab; YAML allows only spaces",
                         candidate == line ? "this line" : "the line above");
    }
  }
  if (reason == "illegal map value" || reason == "end of map not found") {
    return fmt::format(
        "is not YAML ({}): this line and those above it are indented differently, or a value has a colon and needs "
        "quotes",
        reason);
  }
  return fmt::format("is not YAML: {}; check brackets, quotes and colons in this line", make_excerpt(reason));
}

void OptionTable::read(const std::filesystem::path& yaml_file, const std::vector<std::string>& overrides) {
  std::vector<std::string> errors;
  if (!yaml_file.empty())
    SourceReader(*declarations_, errors).read_file(read_config_text(yaml_file), yaml_file.string());
  SourceReader(*declarations_, errors).read_overrides(overrides);
  if (!errors.empty()) {
    throw usage_error("{} in the configuration:\n  {}",
                      errors.size() == 1 ? "an error" : fmt::format("{} errors", errors.size()),
                      fmt::join(errors, "\n  "));
  }
}

}  // namespace vlmtrain
