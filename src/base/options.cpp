#include "vlmtrain/base/options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <yaml-cpp/depthguard.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <type_traits>

#include "base/config_text.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain {

namespace {

template <class T>
constexpr bool kIsAutoOr = std::is_same_v<T, AutoOr<int64_t>> || std::is_same_v<T, AutoOr<double>>;

using StringMap = std::map<std::string, std::string>;

/// Returns the name of an option's type in messages and the documentation.
template <class T>
std::string get_type_name() {
  if constexpr (std::is_same_v<T, bool>) return "boolean";
  if constexpr (std::is_same_v<T, int64_t>) return "integer";
  if constexpr (std::is_same_v<T, double>) return "float";
  if constexpr (std::is_same_v<T, std::string>) return "string";
  if constexpr (std::is_same_v<T, std::vector<std::string>>) return "list";
  if constexpr (std::is_same_v<T, StringMap>) return "map";
  if constexpr (std::is_same_v<T, AutoOr<int64_t>>) return "integer or auto";
  if constexpr (std::is_same_v<T, AutoOr<double>>) return "float or auto";
}

/// Writes a value such that parse_yaml_value<T>() returns it.
template <class T>
void emit_yaml(YAML::Emitter& out, const T& value) {
  if constexpr (kIsAutoOr<T>) {
    if (value) {
      emit_yaml(out, *value);
    } else {
      out << "auto";
    }
  } else if constexpr (std::is_same_v<T, double>) {
    out << fmt::format("{}", value);  // the shortest text that parses back to the same number
  } else if constexpr (std::is_same_v<T, std::string>) {
    const std::string printable_text = to_printable(value);
    if (value.empty() || printable_text != value) {
      out << YAML::DoubleQuoted;  // the style in which yaml-cpp escapes
    }
    // YAML is UTF-8. A path that is not valid UTF-8 is escaped: readable, but another path if
    // parsed.
    out << (is_utf8(value) ? value : printable_text);
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    out << YAML::Flow << YAML::BeginSeq;
    for (const auto& item : value) emit_yaml(out, item);
    out << YAML::EndSeq;
  } else if constexpr (std::is_same_v<T, StringMap>) {
    out << YAML::Flow << YAML::BeginMap;
    for (const auto& [name, text] : value) {
      out << YAML::Key << name << YAML::Value;
      emit_yaml(out, text);
    }
    out << YAML::EndMap;
  } else {
    out << value;
  }
}

/// Returns the value of a node, or nothing if the node is not a T. A null node is an empty string,
/// list or map, and a single word is a list of one.
template <class T>
std::optional<T> parse_yaml_value(const YAML::Node& node) {
  if constexpr (kIsAutoOr<T>) {
    if (node.IsScalar() && node.Scalar() == "auto") return T{};
    const auto value = parse_yaml_value<typename T::value_type>(node);
    return value ? std::optional<T>{T{*value}} : std::nullopt;
  } else if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    if (node.IsNull()) return T{};
    if (node.IsScalar()) return T{node.Scalar()};
    if (!node.IsSequence()) return std::nullopt;
    T items;
    for (const auto& item : node) {
      if (!item.IsScalar()) return std::nullopt;
      items.push_back(item.Scalar());
    }
    return items;
  } else if constexpr (std::is_same_v<T, StringMap>) {
    if (node.IsNull()) return T{};
    if (!node.IsMap()) return std::nullopt;
    T texts;
    for (const auto& entry : node) {
      if (!entry.first.IsScalar() || !entry.second.IsScalar()) return std::nullopt;
      texts[entry.first.Scalar()] = entry.second.Scalar();
    }
    return texts;
  } else if constexpr (std::is_same_v<T, std::string>) {
    if (node.IsNull()) return T{};
    return node.IsScalar() ? std::optional<T>{node.Scalar()} : std::nullopt;
  } else {
    if (!node.IsScalar()) return std::nullopt;
    T value{};
    return YAML::convert<T>::decode(node, value) ? std::optional<T>{value} : std::nullopt;
  }
}

/// Writes a value such that yaml_to_json() returns it.
void emit_json_as_yaml(YAML::Emitter& out, const nlohmann::ordered_json& value) {
  if (value.is_object()) {
    out << YAML::Flow << YAML::BeginMap;
    for (const auto& [key, item] : value.items()) {
      emit_yaml(out << YAML::Key, key);
      emit_json_as_yaml(out << YAML::Value, item);
    }
    out << YAML::EndMap;
  } else if (value.is_array()) {
    out << YAML::Flow << YAML::BeginSeq;
    for (const auto& item : value) emit_json_as_yaml(out, item);
    out << YAML::EndSeq;
  } else if (value.is_string()) {
    emit_yaml(out, value.get<std::string>());
  } else {
    out << value.dump();
  }
}

/// Returns an unquoted scalar as the boolean or number that it looks like, else as a string.
nlohmann::ordered_json scalar_to_json(const YAML::Node& node) {
  const bool is_quoted = node.Tag() == "!";  // yaml-cpp's tag of quoted scalars
  if (bool flag = false; !is_quoted && YAML::convert<bool>::decode(node, flag)) return flag;
  if (int64_t number = 0; !is_quoted && YAML::convert<int64_t>::decode(node, number)) return number;
  if (double number = 0; !is_quoted && YAML::convert<double>::decode(node, number)) return number;
  return node.Scalar();
}

/// Returns nothing if a key is not a scalar or if the node is nested deeper than `max_depth`. The
/// limit ends the recursion into a YAML alias that refers to a node around it.
std::optional<nlohmann::ordered_json> yaml_to_json(const YAML::Node& node, int max_depth) {
  if (node.IsScalar()) return scalar_to_json(node);
  if (!node.IsSequence() && !node.IsMap()) return nlohmann::ordered_json();
  if (max_depth == 0) return std::nullopt;
  auto json = node.IsMap() ? nlohmann::ordered_json::object() : nlohmann::ordered_json::array();
  for (const auto& entry : node) {
    const auto value = yaml_to_json(node.IsMap() ? entry.second : static_cast<const YAML::Node&>(entry), max_depth - 1);
    if (!value) return std::nullopt;
    if (node.IsMap()) {
      if (!entry.first.IsScalar()) return std::nullopt;
      json[entry.first.Scalar()] = *value;
    } else {
      json.push_back(*value);
    }
  }
  return json;
}

/// Returns a value as text for messages and the documentation.
template <class T>
std::string to_yaml_text(const T& value) {
  YAML::Emitter out;
  emit_yaml(out, value);
  return out.c_str();
}

}  // namespace

template <class T>
ValueCheck<T> at_least(T min_value) {
  return {fmt::format("at least {}", min_value), [min_value](const T& value) { return value >= min_value; }};
}

template <class T>
ValueCheck<T> exceeds(T min_value) {
  return {fmt::format("greater than {}", min_value), [min_value](const T& value) { return value > min_value; }};
}

template <class T>
ValueCheck<T> between(T min_value, T max_value) {
  return {fmt::format("from {} to {}", min_value, max_value),
          [min_value, max_value](const T& value) { return value >= min_value && value <= max_value; }};
}

template <class T>
ValueCheck<T> in_half_open_range(T min_value, T max_value) {
  return {fmt::format("from {} to below {}", min_value, max_value),
          [min_value, max_value](const T& value) { return value >= min_value && value < max_value; }};
}

struct OptionTable::Declarations {
  struct Option {
    std::string key;
    std::string type;
    std::string default_value_text;
    std::string doc;
    std::string condition;  // completes "must be …"; empty if the option accepts all values of its type
    /// Stores a valid value and returns nothing, or returns an error message without the key.
    std::function<std::optional<std::string>(const YAML::Node&)> set;
    std::function<void(YAML::Emitter&)> emit_value;
    /// Sets one entry of a map of strings; returns errors as `set`. Empty for other types.
    std::function<std::optional<std::string>(const std::string& name, const YAML::Node&)> set_entry{};
  };

  /// Where a source (the file or the command line) has set a key.
  struct UsedName {
    std::string name;  ///< the key itself or an alias
    int line;          ///< from 1; 0: the command line, where the last value counts
  };
  using UsedNamesByKey = std::map<std::string, UsedName>;

  /// Maximum number of reported errors in a file, for files that are not a configuration. Not
  /// tuned.
  static constexpr size_t kMaxReportedErrors = 100;

  std::vector<Option> options;
  StringMap key_by_alias;  // earlier name of a key → the key
  std::vector<std::pair<std::string, std::string>> sections;
  std::function<std::optional<std::string>(std::string_view)> make_unknown_key_hint;

  Option* find_option(std::string_view key) {
    const auto it = std::find_if(options.begin(), options.end(), [&](const Option& o) { return o.key == key; });
    return it == options.end() ? nullptr : &*it;
  }

  std::string resolve_alias(const std::string& name) const {
    const auto it = key_by_alias.find(name);
    return it == key_by_alias.end() ? name : it->second;
  }

  /// Returns an error message if the source of `used_names` has already set `key`: by another name, or
  /// in another line. Otherwise adds `name` to `used_names`.
  static std::optional<std::string> register_used_name(const std::string& key, const std::string& name, int line,
                                                       UsedNamesByKey& used_names) {
    const auto [used_name, is_new] = used_names.try_emplace(key, UsedName{name, line});
    if (is_new) return std::nullopt;
    if (used_name->second.name != name)
      return fmt::format("{} and {} are the same option; keep {}", used_name->second.name, name, key);
    if (line == 0) return std::nullopt;
    return fmt::format("{} occurs twice, first in line {}; keep one", make_excerpt(name), used_name->second.line);
  }

  /// Registers the entries of `map`, the value of `key` in a file.
  static std::optional<std::string> register_entries(const std::string& key, const YAML::Node& map,
                                                     UsedNamesByKey& used_names) {
    for (const auto& entry : map) {
      if (!entry.first.IsScalar()) continue;
      const std::string name = key + "." + entry.first.Scalar();
      if (auto error = register_used_name(name, name, entry.first.Mark().line + 1, used_names)) return error;
    }
    return std::nullopt;
  }

  /// Returns a sentence that lists the aliases of an option, or "" if it has none.
  std::string describe_aliases(const Option& option) const {
    std::vector<std::string> names;
    for (const auto& [alias, key] : key_by_alias) {
      if (key == option.key) names.push_back(fmt::format("`{}`", alias));
    }
    return names.empty() ? "" : fmt::format(" Alias: {}.", fmt::join(names, ", "));
  }

  /// Returns all keys, then all aliases.
  std::vector<std::string> list_keys_and_aliases() const {
    std::vector<std::string> result;
    for (const auto& option : options) result.push_back(option.key);
    for (const auto& [alias, key] : key_by_alias) result.push_back(alias);
    return result;
  }

  void add_option(Option option) {
    VLMTRAIN_CHECK(find_option(option.key) == nullptr, "option {} is declared twice", option.key);
    VLMTRAIN_CHECK(option.key.find('.') != std::string::npos, "option {} has no section", option.key);
    options.push_back(std::move(option));
  }

  static std::string_view get_last_component(std::string_view key) { return key.substr(key.rfind('.') + 1); }

  std::optional<std::string> find_key(std::string_view name) const {
    const std::vector<std::string> names = list_keys_and_aliases();
    auto it = std::ranges::find(names, name);
    if (it == names.end() && name.find('.') == std::string_view::npos)
      it = std::ranges::find(names, name, get_last_component);
    return it == names.end() ? std::nullopt : std::optional(resolve_alias(*it));
  }

  /// Returns the declared key that `key` probably stands for: one with the same last component,
  /// else one with a similar spelling, else one with a similar last component. `key` may lack its
  /// section.
  std::optional<std::string> find_nearest_key(std::string_view key) const {
    const std::string_view word = get_last_component(key);
    const std::vector<std::string> names = list_keys_and_aliases();
    const auto find_matching_key = [&](std::string_view last_component) {
      const auto it = std::ranges::find(names, last_component, get_last_component);
      return it == names.end() ? std::nullopt : std::optional(resolve_alias(*it));
    };
    if (auto exact_match = find_matching_key(word)) return exact_match;
    if (const auto suggestion = find_nearest_word(key, names)) return resolve_alias(*suggestion);
    std::vector<std::string> words;
    words.reserve(names.size());
    for (const std::string& name : names) words.emplace_back(get_last_component(name));
    const auto suggestion = find_nearest_word(word, words);
    return suggestion ? find_matching_key(*suggestion) : std::nullopt;
  }

  std::string make_key_suggestion(std::string_view key) const {
    if (const auto equivalent_option = make_unknown_key_hint ? make_unknown_key_hint(key) : std::nullopt) {
      return fmt::format("the equivalent in vlmtrain: {}", *equivalent_option);
    }
    const auto suggestion = find_nearest_key(key);
    return suggestion ? fmt::format("did you mean {}?", *suggestion) : "`vlmtrain options` lists all keys";
  }

  /// Sets the option `name`, a key or an alias, or one entry of a map. Adds a message to `errors`
  /// if that fails. `location` is the start of the message, such as "train.yaml:3"; `line` is as
  /// UsedName::line.
  void set_option_value(const std::string& name, const YAML::Node& value, const std::string& location, int line,
                        UsedNamesByKey& used_names, std::vector<std::string>& errors) {
    const std::string key = resolve_alias(name);
    Option* option = find_option(key);
    const bool is_map_in_file = option != nullptr && option->set_entry && value.IsMap() && line > 0;
    auto error = register_used_name(key, name, line, used_names);
    if (!error && is_map_in_file) error = register_entries(key, value, used_names);
    if (error) {
      errors.push_back(fmt::format("{}: {}", location, *error));
      return;
    }
    const size_t dot_pos = key.rfind('.');
    Option* const section =
        option == nullptr && dot_pos != std::string::npos ? find_option(key.substr(0, dot_pos)) : nullptr;
    if (section != nullptr && section->set_entry) {
      error = section->set_entry(key.substr(dot_pos + 1), value);
      if (error) errors.push_back(fmt::format("{}: {}: {}", location, make_excerpt(key), *error));
      return;
    }
    if (option == nullptr) {
      errors.push_back(fmt::format("{}: unknown key {}; {}", location, make_excerpt(key), make_key_suggestion(key)));
      return;
    }
    error =
        contains_nul(value) ? std::optional<std::string>("a value cannot contain a NUL character") : option->set(value);
    if (error) errors.push_back(fmt::format("{}: {}: {}", location, name, *error));
  }

  /// Sets the options in `node`, a map. `prefix` is the section of its keys, or "" at the top
  /// level. Recurses into sections, and into unknown maps at the top level to report their keys.
  /// Does not recurse further, because YAML aliases may refer to nodes around them or expand
  /// exponentially.
  void set_options_from_yaml(const YAML::Node& node, const std::string& prefix, const std::string& file,
                             UsedNamesByKey& used_names, std::vector<std::string>& errors) {
    std::map<std::string, int> line_by_key;
    for (const auto& entry : node) {
      if (errors.size() >= kMaxReportedErrors) return;
      if (!entry.first.IsScalar()) {
        errors.push_back(
            fmt::format("{}:{}: a key must be a word, not a list or section", file, entry.first.Mark().line + 1));
        continue;
      }
      const std::string key = prefix.empty() ? entry.first.Scalar() : prefix + "." + entry.first.Scalar();
      const int line = entry.first.Mark().line + 1;
      const std::string location = fmt::format("{}:{}", file, line);
      if (const auto [first, is_new] = line_by_key.try_emplace(key, line); !is_new) {
        errors.push_back(
            fmt::format("{}: {} occurs twice, first in line {}; keep one", location, make_excerpt(key), first->second));
      } else if (entry.second.IsMap() && find_option(resolve_alias(key)) == nullptr &&
                 (prefix.empty() || is_section(key))) {
        set_options_from_yaml(entry.second, key, file, used_names, errors);
      } else if (entry.second.IsNull() && is_section(key)) {
        continue;
      } else if (is_section(key)) {
        errors.push_back(
            fmt::format("{}: {} is a section, not {}; write its keys below it, indented, with a space after each colon",
                        location, key, entry.second.IsScalar() ? make_excerpt(entry.second.Scalar()) : "a list"));
      } else {
        set_option_value(key, entry.second, location, line, used_names, errors);
      }
    }
  }

  /// Returns the number of arguments, starting at `first`, that form one override split by spaces:
  /// 2 for `key value`, 3 for `key = value`, 0 for anything else.
  size_t count_override_words(const std::vector<std::string>& words, size_t first) {
    if (find_option(resolve_alias(words[first])) == nullptr || first + 1 == words.size()) return 0;
    const std::string& second_word = words[first + 1];
    if (second_word == "=") return first + 2 < words.size() ? 3 : 0;
    return second_word.find('=') == std::string::npos ? 2 : 0;
  }

  static bool contains_nul(const YAML::Node& value) {
    const auto scalar_has_nul = [](const YAML::Node& node) {
      return node.IsScalar() && node.Scalar().find('\0') != std::string::npos;
    };
    const auto entry_has_nul = [&](const auto& entry) {
      return scalar_has_nul(entry.first) || scalar_has_nul(entry.second);
    };
    if (value.IsMap()) return std::any_of(value.begin(), value.end(), entry_has_nul);
    return scalar_has_nul(value) || (value.IsSequence() && std::any_of(value.begin(), value.end(), scalar_has_nul));
  }

  bool is_section(const std::string& key) const {
    return std::any_of(options.begin(), options.end(),
                       [&](const Option& option) { return option.key.rfind(key + ".", 0) == 0; });
  }
};

OptionTable::OptionTable() : declarations_(std::make_unique<Declarations>()) {}
OptionTable::~OptionTable() = default;
OptionTable::OptionTable(OptionTable&&) noexcept = default;
OptionTable& OptionTable::operator=(OptionTable&&) noexcept = default;

template <class T>
void OptionTable::add(std::string key, T& target, std::string doc, std::optional<ValueCheck<T>> check) {
  Declarations::Option option{std::move(key), get_type_name<T>(), to_yaml_text(target), std::move(doc), {}, {}, {}};
  if (check) option.condition = check->description;
  option.set = [&target, check](const YAML::Node& node) -> std::optional<std::string> {
    const auto value = parse_yaml_value<T>(node);
    if (!value) {
      if (std::is_same_v<T, StringMap> && node.IsMap()) {
        return "every entry must be a name and a value, such as {name: value}";
      }
      const std::string actual = node.IsScalar() ? node.Scalar() : node.IsNull() ? "nothing" : "a list or section";
      const std::string type = std::is_same_v<T, std::vector<std::string>> ? "list of strings"
                               : std::is_same_v<T, StringMap>              ? "map of strings"
                                                                           : get_type_name<T>();
      return fmt::format("must be {} {}, not {}", type.starts_with("integer") ? "an" : "a", type, make_excerpt(actual));
    }
    if (check && !check->is_satisfied(*value))
      return fmt::format("must be {}, not {}", check->description, make_excerpt(to_yaml_text(*value)));
    target = *value;
    return std::nullopt;
  };
  option.emit_value = [&target](YAML::Emitter& out) { emit_yaml(out, target); };
  if constexpr (std::is_same_v<T, StringMap>) {
    option.set_entry = [&target, set = option.set](const std::string& name, const YAML::Node& text) {
      YAML::Node merged_map;
      for (const auto& [entry_name, value] : target) merged_map[entry_name] = value;
      merged_map[name] = text;
      return set(merged_map);
    };
  }
  declarations_->add_option(std::move(option));
}

void OptionTable::add_enum_by_index(std::string key, std::vector<std::string> names, const std::function<size_t()>& get,
                                    const std::function<void(size_t)>& set, std::string doc) {
  Declarations::Option option{std::move(key),
                              "enum",
                              names.at(get()),
                              std::move(doc),
                              fmt::format("one of {}", fmt::join(names, ", ")),
                              {},
                              {}};
  option.set = [names, set](const YAML::Node& node) -> std::optional<std::string> {
    const auto text = parse_yaml_value<std::string>(node);
    const auto it = text ? std::find(names.begin(), names.end(), *text) : names.end();
    if (it == names.end()) {
      return fmt::format("must be one of {}, not {}", fmt::join(names, ", "),
                         text ? make_excerpt(*text) : "a list or section");
    }
    set(static_cast<size_t>(it - names.begin()));
    return std::nullopt;
  };
  option.emit_value = [names, get](YAML::Emitter& out) { out << names.at(get()); };
  declarations_->add_option(std::move(option));
}

void OptionTable::add_structured_option(std::string key, std::string type,
                                        const std::function<nlohmann::ordered_json()>& get,
                                        std::function<std::optional<std::string>(const nlohmann::ordered_json&)> set,
                                        std::string doc) {
  const auto emit_value = [get](YAML::Emitter& out) { emit_json_as_yaml(out, get()); };
  YAML::Emitter default_value_text;
  emit_value(default_value_text);
  Declarations::Option option{std::move(key), std::move(type), default_value_text.c_str(), std::move(doc), {}, {},
                              emit_value};
  option.set = [set = std::move(set)](const YAML::Node& node) -> std::optional<std::string> {
    constexpr int kMaxStructuredDepth = 8;  // deeper than any structured option
    const auto value = yaml_to_json(node, kMaxStructuredDepth);
    return value ? set(*value) : "lists and sections are nested too deeply";
  };
  declarations_->add_option(std::move(option));
}

void OptionTable::add_alias(std::string alias, std::string key) {
  VLMTRAIN_CHECK(declarations_->find_option(key) != nullptr, "key {} of alias {} is not declared", key, alias);
  VLMTRAIN_CHECK(declarations_->find_option(alias) == nullptr, "alias {} is a declared key", alias);
  declarations_->key_by_alias[std::move(alias)] = std::move(key);
}

void OptionTable::set_section_description(std::string section, std::string doc) {
  declarations_->sections.emplace_back(std::move(section), std::move(doc));
}

void OptionTable::set_unknown_key_hint(std::function<std::optional<std::string>(std::string_view)> make_hint) {
  declarations_->make_unknown_key_hint = std::move(make_hint);
}

std::optional<std::string> OptionTable::find_key(std::string_view name) const {
  return declarations_->find_key(name);
}

std::string OptionTable::make_key_suggestion(std::string_view key) const {
  return declarations_->make_key_suggestion(key);
}

void OptionTable::read(const std::filesystem::path& yaml_file, const std::vector<std::string>& overrides) {
  std::vector<std::string> errors;
  if (!yaml_file.empty()) {
    const std::string text = read_config_text(yaml_file);
    try {
      const auto yaml_documents = YAML::LoadAll(text);
      if (yaml_documents.size() > 1) {
        throw usage_error("{}: contains {} YAML documents; a configuration is one document: remove the lines ---",
                          yaml_file.string(), yaml_documents.size());
      }
      const YAML::Node root = yaml_documents.empty() ? YAML::Node() : yaml_documents.front();
      if (root.IsMap()) {
        Declarations::UsedNamesByKey used_names;
        declarations_->set_options_from_yaml(root, "", yaml_file.string(), used_names, errors);
      } else if (!root.IsNull()) {
        errors.push_back(fmt::format("{}: must contain sections of keys; see docs/config.md", yaml_file.string()));
      }
    } catch (const YAML::DeepRecursion& error) {
      throw usage_error("{}:{}: lists and sections are nested too deeply; a configuration has sections of keys",
                        yaml_file.string(), error.mark.line + 1);
    } catch (const YAML::Exception& error) {
      throw usage_error("{}:{}: {}", yaml_file.string(), error.mark.line + 1,
                        describe_yaml_error(text, error.mark.line, error.msg));
    }
  }
  Declarations::UsedNamesByKey used_names;
  for (size_t i = 0; i < overrides.size(); ++i) {
    const auto& override_text = overrides[i];
    const auto equals_pos = override_text.find('=');
    if (const size_t num_words = declarations_->count_override_words(overrides, i); num_words > 0) {
      errors.push_back(fmt::format("{0}: an override is one argument without spaces: {0}={1}", override_text,
                                   make_excerpt(overrides[i + num_words - 1])));
      i += num_words - 1;
      continue;
    }
    if (equals_pos == std::string::npos || equals_pos == 0) {
      errors.push_back(fmt::format("{}: an override is written key=value, such as training.max_steps=10",
                                   make_excerpt(override_text)));
      continue;
    }
    try {
      declarations_->set_option_value(override_text.substr(0, equals_pos),
                                      YAML::Load(override_text.substr(equals_pos + 1)), "command line",
                                      /*line=*/0, used_names, errors);
    } catch (const YAML::DeepRecursion&) {
      errors.push_back(fmt::format("command line: {}: lists are nested too deeply", make_excerpt(override_text)));
    } catch (const YAML::Exception& error) {
      errors.push_back(fmt::format("command line: {}: the value is not YAML: {}", make_excerpt(override_text),
                                   make_excerpt(error.msg)));
    }
  }
  if (!errors.empty()) {
    throw usage_error("{} in the configuration:\n  {}",
                      errors.size() == 1 ? "an error" : fmt::format("{} errors", errors.size()),
                      fmt::join(errors, "\n  "));
  }
}

std::string OptionTable::format_value(std::string_view key) const {
  const auto* const option = declarations_->find_option(key);
  VLMTRAIN_CHECK(option != nullptr, "no option {} is declared", key);
  YAML::Emitter out;
  option->emit_value(out);
  return out.c_str();
}

std::string OptionTable::to_yaml() const {
  YAML::Emitter out;
  std::vector<std::string> section_names;
  std::map<std::string, std::vector<const Declarations::Option*>> sections;
  for (const auto& option : declarations_->options) {
    const std::string section = option.key.substr(0, option.key.find('.'));
    if (sections[section].empty()) section_names.push_back(section);
    sections[section].push_back(&option);
  }
  out << YAML::BeginMap;
  for (const auto& section : section_names) {
    out << YAML::Key << section << YAML::Value << YAML::BeginMap;
    for (const auto* option : sections[section]) {
      out << YAML::Key << option->key.substr(section.size() + 1) << YAML::Value;
      option->emit_value(out);
    }
    out << YAML::EndMap;
  }
  out << YAML::EndMap;
  return std::string(out.c_str()) + "\n";
}

std::string OptionTable::to_markdown() const {
  std::string text =
      "# Configuration\n\n"
      "Written by `vlmtrain options --markdown` from the declarations in the code; a test keeps it current.\n"
      "Every key can be overridden on the command line: `vlmtrain --config train.yaml training.max_steps=10`.\n";
  for (const auto& [section, doc] : declarations_->sections) {
    text += fmt::format("\n## `{}`\n\n{}\n\n| key | type | default | meaning |\n|---|---|---|---|\n", section, doc);
    for (const auto& option : declarations_->options) {
      if (option.key.rfind(section + ".", 0) != 0) continue;
      const std::string condition_text = option.condition.empty() ? "" : fmt::format(" ({})", option.condition);
      text += fmt::format("| `{}` | {}{} | `{}` | {}{} |\n", option.key, option.type, condition_text,
                          option.default_value_text, option.doc, declarations_->describe_aliases(option));
    }
  }
  return text;
}

std::optional<std::string> find_nearest_word(std::string_view word, const std::vector<std::string>& candidates) {
  // Longer than any key. The limit bounds the time, which grows with the product of both lengths.
  constexpr size_t kMaxWordLength = 200;
  if (word.size() > kMaxWordLength) return std::nullopt;
  std::optional<std::string> nearest_word;
  // The first distance that is too large. Not tuned.
  size_t distance_bound = std::max<size_t>(3, word.size() / 3);
  for (const auto& candidate : candidates) {
    // distance_row[j]: distance between the first i characters of `word` and the first j of
    // `candidate`.
    std::vector<size_t> distance_row(candidate.size() + 1);
    std::iota(distance_row.begin(), distance_row.end(), size_t{0});
    for (size_t i = 1; i <= word.size(); ++i) {
      size_t diagonal_distance = distance_row[0];
      distance_row[0] = i;
      for (size_t j = 1; j <= candidate.size(); ++j) {
        const size_t substitution_distance = diagonal_distance + (word[i - 1] == candidate[j - 1] ? 0 : 1);
        diagonal_distance = distance_row[j];
        distance_row[j] = std::min({distance_row[j] + 1, distance_row[j - 1] + 1, substitution_distance});
      }
    }
    if (distance_row.back() < distance_bound) {
      distance_bound = distance_row.back();
      nearest_word = candidate;
    }
  }
  return nearest_word;
}

template void OptionTable::add(std::string, bool&, std::string, std::optional<ValueCheck<bool>>);
template void OptionTable::add(std::string, int64_t&, std::string, std::optional<ValueCheck<int64_t>>);
template void OptionTable::add(std::string, double&, std::string, std::optional<ValueCheck<double>>);
template void OptionTable::add(std::string, std::string&, std::string, std::optional<ValueCheck<std::string>>);
template void OptionTable::add(std::string, std::vector<std::string>&, std::string,
                               std::optional<ValueCheck<std::vector<std::string>>>);
template void OptionTable::add(std::string, std::map<std::string, std::string>&, std::string,
                               std::optional<ValueCheck<std::map<std::string, std::string>>>);
template void OptionTable::add(std::string, AutoOr<int64_t>&, std::string, std::optional<ValueCheck<AutoOr<int64_t>>>);
template void OptionTable::add(std::string, AutoOr<double>&, std::string, std::optional<ValueCheck<AutoOr<double>>>);

template ValueCheck<int64_t> at_least(int64_t);
template ValueCheck<double> at_least(double);
template ValueCheck<int64_t> exceeds(int64_t);
template ValueCheck<double> exceeds(double);
template ValueCheck<int64_t> between(int64_t, int64_t);
template ValueCheck<double> between(double, double);
template ValueCheck<double> in_half_open_range(double, double);

}  // namespace vlmtrain
