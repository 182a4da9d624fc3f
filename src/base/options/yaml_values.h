#pragma once

#include <fmt/core.h>
#include <nlohmann/json.hpp>
#include <yaml-cpp/yaml.h>

#include <cmath>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "vlmtrain/base/printable.h"
#include "vlmtrain/base/value_check.h"

namespace vlmtrain {

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

/// Writes a value such that yaml_to_json() stores it.
void emit_json_as_yaml(YAML::Emitter& out, const nlohmann::ordered_json& value);

/// Stores the value of a node in `json` and returns nothing. Unquoted scalars are the booleans or
/// numbers that they look like. Returns an error message if a key is not a scalar, if a map has a
/// key twice, or if the node is nested deeper than `max_depth`. The limit ends the recursion into a
/// YAML alias that refers to a node around it.
std::optional<std::string> yaml_to_json(const YAML::Node& node, int max_depth, nlohmann::ordered_json& json);

}  // namespace vlmtrain
