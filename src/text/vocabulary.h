#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer/json_node.h"

namespace vlmtrain::text {

/// The model's tokens and their ids, which need not be dense.
class Vocabulary {
 public:
  /// Reads an object {token: id}.
  explicit Vocabulary(const JsonNode& node);

  std::optional<uint32_t> find(std::string_view token) const {
    const auto entry = ids_.find(token);
    return entry == ids_.end() ? std::nullopt : std::optional(entry->second);
  }
  /// Empty if no token has this id.
  std::string_view token(int64_t id) const {
    const bool is_in_range = id >= 0 && id < static_cast<int64_t>(tokens_.size());
    return is_in_range ? std::string_view(tokens_[static_cast<size_t>(id)]) : std::string_view();
  }
  /// Number of tokens, fewer than size() where ids are missing.
  int64_t count() const { return static_cast<int64_t>(ids_.size()); }
  /// Highest id plus one.
  int64_t size() const { return static_cast<int64_t>(tokens_.size()); }
  /// All tokens by id; empty where there is none.
  const std::vector<std::string>& tokens() const { return tokens_; }

 private:
  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, uint32_t> ids_;  // keys are views of tokens_
};

}  // namespace vlmtrain::text
