#include "base/options/yaml_values.h"

#include <cstdint>
#include <utility>

namespace vlmtrain {

namespace {

/// Returns an unquoted scalar as the boolean or number that it looks like, else as a string.
nlohmann::ordered_json scalar_to_json(const YAML::Node& node) {
  const bool is_quoted = node.Tag() == "!";  // yaml-cpp's tag of quoted scalars
  if (bool flag = false; !is_quoted && YAML::convert<bool>::decode(node, flag)) return flag;
  if (int64_t number = 0; !is_quoted && YAML::convert<int64_t>::decode(node, number)) return number;
  if (double number = 0; !is_quoted && YAML::convert<double>::decode(node, number)) return number;
  return node.Scalar();
}

}  // namespace

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

}  // namespace vlmtrain
