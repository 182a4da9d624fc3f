#include <fmt/core.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/options/declarations.h"
#include "vlmtrain/base/options.h"
#include "vlmtrain/base/text_format.h"

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
    if (!YAML::convert<T>::decode(node, value)) return std::nullopt;
    if constexpr (std::is_same_v<T, double>) {
      if (!std::isfinite(value)) return std::nullopt;
      value += 0.0;  // -0.0 becomes 0.0, its equal, which has another text
    }
    return value;
  }
}

/// Returns a value as text for messages and the documentation.
template <class T>
std::string to_yaml_text(const T& value) {
  YAML::Emitter out;
  emit_yaml(out, value);
  return out.c_str();
}

/// Returns an unquoted scalar as the boolean or number that it looks like, else as a string.
nlohmann::ordered_json scalar_to_json(const YAML::Node& node) {
  const bool is_quoted = node.Tag() == "!";  // yaml-cpp's tag of quoted scalars
  if (bool flag = false; !is_quoted && YAML::convert<bool>::decode(node, flag)) return flag;
  if (int64_t number = 0; !is_quoted && YAML::convert<int64_t>::decode(node, number)) return number;
  if (double number = 0; !is_quoted && YAML::convert<double>::decode(node, number)) return number;
  return node.Scalar();
}

/// Writes a value such that yaml_to_json() stores it.
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

/// Stores the value of a node in `json` and returns nothing. Unquoted scalars are the booleans or
/// numbers that they look like. Returns an error message if a key is not a scalar, if a map has a
/// key twice, or if the node is nested deeper than `max_depth`. The limit ends the recursion into a
/// YAML alias that refers to a node around it.
std::optional<std::string> yaml_to_json(const YAML::Node& node, int max_depth, nlohmann::ordered_json& json) {
  if (node.IsScalar()) {
    json = scalar_to_json(node);
    return std::nullopt;
  }
  json = nlohmann::ordered_json();
  if (!node.IsSequence() && !node.IsMap()) return std::nullopt;
  if (max_depth == 0) return "lists and sections are nested too deeply";
  json = node.IsMap() ? nlohmann::ordered_json::object() : nlohmann::ordered_json::array();
  for (const auto& entry : node) {
    nlohmann::ordered_json value;
    const YAML::Node& value_node = node.IsMap() ? entry.second : static_cast<const YAML::Node&>(entry);
    if (auto error = yaml_to_json(value_node, max_depth - 1, value)) return error;
    if (node.IsSequence()) {
      json.push_back(std::move(value));
      continue;
    }
    if (!entry.first.IsScalar()) return "a key must be a word, not a list or section";
    const std::string& key = entry.first.Scalar();
    if (json.contains(key)) return fmt::format("{} occurs twice; keep one", make_excerpt(key));
    json[key] = std::move(value);
  }
  return std::nullopt;
}

}  // namespace

OptionTable::OptionTable() : declarations_(std::make_unique<OptionDeclarations>()) {}
OptionTable::~OptionTable() = default;
OptionTable::OptionTable(OptionTable&&) noexcept = default;
OptionTable& OptionTable::operator=(OptionTable&&) noexcept = default;

template <class T>
void OptionTable::add(std::string_view key, T& target, const OptionInfo& info,
                      std::optional<ValueCheck<std::type_identity_t<T>>> check) {
  OptionDeclarations::Option option{.key = std::string(key),
                                    .type = get_type_name<T>(),
                                    .default_value_text = to_yaml_text(target),
                                    .condition = check ? check->description : "",
                                    .info = info,
                                    .set = {},
                                    .emit_value = {}};
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

void OptionTable::add_enum_by_index(std::string_view key, std::vector<std::string> names,
                                    const std::function<size_t()>& get, const std::function<void(size_t)>& set,
                                    const OptionInfo& info) {
  OptionDeclarations::Option option{.key = std::string(key),
                                    .type = "enum",
                                    .default_value_text = names.at(get()),
                                    .condition = fmt::format("one of {}", fmt::join(names, ", ")),
                                    .info = info,
                                    .set = {},
                                    .emit_value = {}};
  option.set = [names, set, aliases = info.value_aliases](const YAML::Node& node) -> std::optional<std::string> {
    auto text = parse_yaml_value<std::string>(node);
    if (const auto alias = text ? aliases.find(*text) : aliases.end(); alias != aliases.end()) text = alias->second;
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

void OptionTable::add_structured_option(std::string_view key, std::string type,
                                        const std::function<nlohmann::ordered_json()>& get,
                                        std::function<std::optional<std::string>(const nlohmann::ordered_json&)> set,
                                        const OptionInfo& info) {
  const auto emit_value = [get](YAML::Emitter& out) { emit_json_as_yaml(out, get()); };
  YAML::Emitter default_value_text;
  emit_value(default_value_text);
  OptionDeclarations::Option option{.key = std::string(key),
                                    .type = std::move(type),
                                    .default_value_text = default_value_text.c_str(),
                                    .condition = {},
                                    .info = info,
                                    .set = {},
                                    .emit_value = emit_value};
  option.set = [set = std::move(set)](const YAML::Node& node) -> std::optional<std::string> {
    constexpr int kMaxStructuredDepth = 8;  // deeper than any structured option
    nlohmann::ordered_json value;
    if (auto error = yaml_to_json(node, kMaxStructuredDepth, value)) return error;
    return set(value);
  };
  declarations_->add_option(std::move(option));
}

void OptionTable::add_foreign_keys(std::vector<std::string> names, std::string advice) {
  declarations_->add_hints(names, /*key=*/"", advice);
  declarations_->foreign_keys.push_back({.names = std::move(names), .text = std::move(advice)});
}

void OptionTable::set_section_description(std::string section, std::string doc) {
  declarations_->sections.emplace_back(std::move(section), std::move(doc));
}

template void OptionTable::add(std::string_view, bool&, const OptionInfo&, std::optional<ValueCheck<bool>>);
template void OptionTable::add(std::string_view, int64_t&, const OptionInfo&, std::optional<ValueCheck<int64_t>>);
template void OptionTable::add(std::string_view, double&, const OptionInfo&, std::optional<ValueCheck<double>>);
template void OptionTable::add(std::string_view, std::string&, const OptionInfo&,
                               std::optional<ValueCheck<std::string>>);
template void OptionTable::add(std::string_view, std::vector<std::string>&, const OptionInfo&,
                               std::optional<ValueCheck<std::vector<std::string>>>);
template void OptionTable::add(std::string_view, StringMap&, const OptionInfo&, std::optional<ValueCheck<StringMap>>);
template void OptionTable::add(std::string_view, AutoOr<int64_t>&, const OptionInfo&,
                               std::optional<ValueCheck<AutoOr<int64_t>>>);
template void OptionTable::add(std::string_view, AutoOr<double>&, const OptionInfo&,
                               std::optional<ValueCheck<AutoOr<double>>>);

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

template ValueCheck<int64_t> at_least(int64_t);
template ValueCheck<double> at_least(double);
template ValueCheck<int64_t> exceeds(int64_t);
template ValueCheck<double> exceeds(double);
template ValueCheck<int64_t> between(int64_t, int64_t);
template ValueCheck<double> between(double, double);
template ValueCheck<double> in_half_open_range(double, double);

}  // namespace vlmtrain
