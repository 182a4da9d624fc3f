#pragma once

#include <fmt/core.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::text {

/// A value of a JSON document with its path, so that each error names the file and the key. `value`
/// and `source`, the file name in messages, must outlive the node and all nodes made from it. All
/// accessors throw UserError (kBadData) for missing keys and for values of other types.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, const std::string& source) : JsonNode(value, source, "") {}

  const nlohmann::json& value() const { return *value_; }
  /// Returns whether `key` exists and is not null.
  bool has_key(const std::string& key) const {
    return value_->is_object() && value_->contains(key) && !(*value_)[key].is_null();
  }

  /// Returns the value of `key`.
  JsonNode at(const std::string& key) const {
    if (!has_key(key)) throw error("lacks the key \"{}\"", key);
    return {(*value_)[key], *source_, path_.empty() ? key : path_ + "." + key};
  }
  /// Returns the elements of the list `key`.
  std::vector<JsonNode> get_list(const std::string& key) const {
    const JsonNode list = at(key);
    if (!list.value_->is_array()) throw list.error("must be a list");
    std::vector<JsonNode> items;
    items.reserve(list.value_->size());
    for (size_t i = 0; i < list.value_->size(); ++i) {
      items.push_back({(*list.value_)[i], *source_, fmt::format("{}[{}]", list.path_, i)});
    }
    return items;
  }

  /// Each returns this value if it has the type.
  std::string string() const {
    if (!value_->is_string()) throw error("must be a string");
    return value_->get<std::string>();
  }
  bool boolean() const {
    if (!value_->is_boolean()) throw error("must be true or false");
    return value_->get<bool>();
  }
  int64_t integer() const {
    if (!value_->is_number_integer()) throw error("must be an integer");
    return value_->get<int64_t>();
  }
  /// Each returns the value of `key`. get_bool() returns `fallback` if the key is missing or null.
  std::string get_string(const std::string& key) const { return at(key).string(); }
  bool get_bool(const std::string& key, bool fallback) const { return has_key(key) ? at(key).boolean() : fallback; }

  /// Returns (does not throw) an error about this value with the message "FILE: KEY …".
  template <class... Args>
  UserError error(fmt::format_string<Args...> format, Args&&... args) const {
    return data_error("{}: {} {}", *source_, path_.empty() ? "the document" : path_,
                      fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  JsonNode(const nlohmann::json& value, const std::string& source, std::string path)
      : value_(&value), source_(&source), path_(std::move(path)) {}

  const nlohmann::json* value_;
  const std::string* source_;
  std::string path_;
};

/// An entry of a table of component types: the value of the key `type` in tokenizer.json, and the
/// function that makes the component.
template <class Component>
struct ComponentFactory {
  std::string_view type;
  std::unique_ptr<Component> (*make)(const JsonNode&);
};

/// Returns the component that `node` describes by its key `type`. Throws UserError (kBadData) with
/// a list of the supported types if no factory has this type.
template <class Component>
std::unique_ptr<Component> make_component(const JsonNode& node,
                                          std::span<const ComponentFactory<Component>> factories) {
  const std::string type = node.get_string("type");
  std::string supported_type_names;
  for (const auto& factory : factories) {
    if (factory.type == type) return factory.make(node);
    supported_type_names += (supported_type_names.empty() ? "" : ", ") + std::string(factory.type);
  }
  throw node.error("has the type \"{}\", which is not supported; supported are {}", make_excerpt(type),
                   supported_type_names);
}

/// Returns the component `key` of `root`, or null if it is missing or null.
template <class Component>
std::unique_ptr<Component> make_optional_component(const JsonNode& root, const std::string& key,
                                                   std::unique_ptr<Component> (*make)(const JsonNode&)) {
  return root.has_key(key) ? make(root.at(key)) : nullptr;
}

}  // namespace vlmtrain::text
