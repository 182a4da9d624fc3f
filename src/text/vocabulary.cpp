#include "text/vocabulary.h"

#include <algorithm>

#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::text {
namespace {

constexpr int64_t kMaxVocabularyIds = int64_t{1} << 26U;  // a guard against ids that would take all memory

int64_t check_id(const std::string& token, const nlohmann::json& id, const JsonNode& node) {
  const bool is_valid = id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < kMaxVocabularyIds;
  if (!is_valid)
    throw node.error("gives the token \"{}\" the id {}, which is none", make_excerpt(token), io::make_json_excerpt(id));
  return id.get<int64_t>();
}

}  // namespace

Vocabulary::Vocabulary(const JsonNode& node) {
  const nlohmann::json& entries = node.value();
  if (!entries.is_object()) throw node.error("must be an object of tokens and their ids");
  int64_t max_id = -1;
  for (const auto& [token, id] : entries.items()) max_id = std::max(max_id, check_id(token, id, node));
  tokens_.resize(static_cast<size_t>(max_id + 1));
  ids_.reserve(entries.size());
  for (const auto& [token, id] : entries.items()) {
    if (token.empty()) continue;
    std::string& token_slot = tokens_[id.get<size_t>()];
    if (!token_slot.empty())
      throw node.error("gives the id {} to \"{}\" and to \"{}\"", id.get<size_t>(), token_slot, token);
    token_slot = token;
    ids_.emplace(token_slot, id.get<uint32_t>());
  }
}

}  // namespace vlmtrain::text
