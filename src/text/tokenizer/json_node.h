#pragma once

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"

namespace vlmtrain::text {

/// A value of a JSON file that knows its place in it, so that every complaint names file and key. Refers to the
/// document and to `source`: both must outlive it.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, const std::string& source) : JsonNode(value, source, "") {}

  const nlohmann::json& value() const { return *value_; }
  /// Whether `key` is there and not null.
  bool has(const std::string& key) const {
    return value_->is_object() && value_->contains(key) && !(*value_)[key].is_null();
  }

  JsonNode at(const std::string& key) const {
    if (!has(key)) throw error("lacks the key \"{}\"", key);
    return {(*value_)[key], *source_, path_.empty() ? key : path_ + "." + key};
  }
  /// The elements of the list under `key`.
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

  std::string string() const {
    if (!value_->is_string()) throw error("must be a string");
    return value_->get<std::string>();
  }
  bool boolean() const {
    if (!value_->is_boolean()) throw error("must be true or false");
    return value_->get<bool>();
  }
  int64_t integer() const {
    if (!value_->is_number_integer()) throw error("must be a whole number");
    return value_->get<int64_t>();
  }
  std::string get_string(const std::string& key) const { return at(key).string(); }
  bool get_bool(const std::string& key, bool fallback) const { return has(key) ? at(key).boolean() : fallback; }

  /// An error about this value: "FILE: KEY …".
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

}  // namespace vlmtrain::text
