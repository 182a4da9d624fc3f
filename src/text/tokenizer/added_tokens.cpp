#include "text/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "text/unicode/characters.h"
#include "vlmtrain/base/log.h"

namespace vlmtrain::text {
namespace {

/// Limit of ids. Tables are indexed by id, so a huge id in a damaged file would exhaust memory;
/// vocabularies have some 10^5 tokens.
constexpr int64_t kAddedTokenIdLimit = int64_t{1} << 26U;

/// Returns whether a word character precedes or follows `match`.
bool is_next_to_word_character(std::string_view text, ByteRange match) {
  const bool has_word_before =
      match.begin > 0 && is_word_character(read_utf8(text, find_previous_character(text, match.begin)).code_point);
  const bool has_word_after = match.end < text.size() && is_word_character(read_utf8(text, match.end).code_point);
  return has_word_before || has_word_after;
}

/// Returns the begin of the white space that ends at byte `begin`, but at least `limit`.
size_t find_white_space_begin(std::string_view text, size_t begin, size_t limit) {
  while (begin > limit) {
    const size_t previous = find_previous_character(text, begin);
    if (!is_white_space(read_utf8(text, previous).code_point)) break;
    begin = previous;
  }
  return begin;
}

/// Returns the end of the white space that begins at byte `end`.
size_t find_white_space_end(std::string_view text, size_t end) {
  while (end < text.size()) {
    const Utf8Character utf8_character = read_utf8(text, end);
    if (!is_white_space(utf8_character.code_point)) break;
    end += utf8_character.num_bytes;
  }
  return end;
}

/// Returns `content` after `normalizer`, or unchanged if `normalizer` is null.
std::string normalize_content(const std::string& content, const Normalizer* normalizer) {
  if (normalizer == nullptr) return content;
  AlignedText text = AlignedText::from_original_text(content, 0);
  normalizer->normalize(text);
  return text.bytes;
}

/// Parses an entry of `added_tokens`. Throws UserError (bad data) for an id that contradicts the
/// vocabulary.
AddedToken parse_added_token(const JsonNode& node, const Vocabulary& vocabulary, const Normalizer* normalizer) {
  AddedToken token{node.get_string("content"),
                   "",
                   0,
                   node.get_bool("single_word", false),
                   node.get_bool("lstrip", false),
                   node.get_bool("rstrip", false),
                   node.get_bool("normalized", true),
                   node.get_bool("special", false)};
  token.matched_text = token.normalized ? normalize_content(token.content, normalizer) : token.content;
  const int64_t id = node.at("id").integer();
  if (id < 0 || id >= kAddedTokenIdLimit) throw node.error("has the invalid id {}", id);
  token.id = static_cast<uint32_t>(id);
  const auto vocabulary_id = vocabulary.find(token.content);
  if (vocabulary_id && *vocabulary_id != token.id) {
    throw node.error("gives \"{}\" the id {}, but model.vocab gives it {}; download the file again", token.content, id,
                     *vocabulary_id);
  }
  return token;
}

}  // namespace

void TokenTrie::insert(const AddedToken& token) {
  uint32_t node = 0;
  for (const char c : token.matched_text) {
    const auto byte = static_cast<unsigned char>(c);
    uint32_t next = find_child(node, byte);
    if (next == 0) {
      next = static_cast<uint32_t>(nodes_.size());
      if (node == 0) root_children_[byte] = next;
      nodes_[node].children.emplace_back(byte, next);
      nodes_.emplace_back();
    }
    node = next;
  }
  nodes_[node].token = &token;
}

uint32_t TokenTrie::find_child(uint32_t node, unsigned char byte) const {
  if (node == 0) return root_children_[byte];
  for (const auto& [label, next] : nodes_[node].children) {
    if (label == byte) return next;
  }
  return 0;
}

std::optional<TokenTrie::Match> TokenTrie::find_longest_token(std::string_view text, size_t pos) const {
  std::optional<Match> longest_match;
  uint32_t node = 0;
  for (size_t i = pos; i < text.size(); ++i) {
    node = find_child(node, static_cast<unsigned char>(text[i]));
    if (node == 0) break;
    if (nodes_[node].token != nullptr) longest_match = Match{i + 1 - pos, nodes_[node].token};
  }
  return longest_match;
}

AddedTokens::AddedTokens(const JsonNode& root, const Vocabulary& vocabulary, const Normalizer* normalizer,
                         std::span<const ExternalToken> external_tokens)
    : next_id_(vocabulary.num_tokens()) {
  if (root.has_key("added_tokens")) {
    for (const JsonNode& node : root.get_list("added_tokens")) add_tokenizer_json_token(node, vocabulary, normalizer);
  }
  for (const ExternalToken& token : external_tokens) add_external_token(token, vocabulary, normalizer);
  for (const auto& [id, token] : tokens_by_id_) {
    (token.normalized ? normalized_trie_ : original_trie_).insert(token);
  }
}

void AddedTokens::add_tokenizer_json_token(const JsonNode& node, const Vocabulary& vocabulary,
                                           const Normalizer* normalizer) {
  AddedToken token = parse_added_token(node, vocabulary, normalizer);
  if (token.content.empty()) return;
  if (const AddedToken* const existing_token = find(int64_t{token.id})) {
    throw node.error("has the id {}, which \"{}\" also has", token.id, existing_token->content);
  }
  if (const AddedToken* const existing_token = find(token.content)) {
    throw node.error("gives \"{}\" the id {}, but an earlier entry gives it {}; remove one of them", token.content,
                     token.id, existing_token->id);
  }
  if (!vocabulary.find(token.content)) {
    if (int64_t{token.id} != next_id_) {
      throw node.error(
          "gives \"{}\" the id {}, but transformers assigns {}; list the added tokens by id, with a reserved token for "
          "each missing id",
          token.content, token.id, next_id_);
    }
    ++next_id_;
  }
  add(std::move(token));
}

void AddedTokens::add_external_token(const ExternalToken& external_token, const Vocabulary& vocabulary,
                                     const Normalizer* normalizer) {
  if (external_token.content.empty()) return;
  const auto compute_matched_text = [&] {
    return external_token.normalized ? normalize_content(external_token.content, normalizer) : external_token.content;
  };
  if (const AddedToken* const existing_token = find(external_token.content)) {
    if (external_token.id && *external_token.id != existing_token->id) {
      spdlog::warn(
          "{}: gives \"{}\" the id {}, but tokenizer.json gives it the id {}, which is used, as in transformers; "
          "correct the id in this file",
          external_token.source, external_token.content, *external_token.id, existing_token->id);
    }
    if (!external_token.overrides_tokenizer_json) return;
    // The id stays; only the other properties change.
    AddedToken& token = tokens_by_id_.at(existing_token->id);
    token.matched_text = compute_matched_text();
    token.single_word = external_token.single_word;
    token.lstrip = external_token.lstrip;
    token.rstrip = external_token.rstrip;
    token.normalized = external_token.normalized;
    token.special = external_token.special;
    return;
  }
  const auto vocabulary_id = vocabulary.find(external_token.content);
  const int64_t id = vocabulary_id ? int64_t{*vocabulary_id} : next_id_;
  if (external_token.id && *external_token.id != id) {
    throw data_error(
        "{}: gives \"{}\" the id {}, but transformers gives it {}, because tokenizer.json {}; correct the id, or save "
        "the tokenizer again with transformers",
        external_token.source, external_token.content, *external_token.id, id,
        vocabulary_id ? "gives it that id" : "does not have it and that is the next id");
  }
  if (!vocabulary_id) {
    if (!vocabulary.token(id).empty()) {
      throw data_error(
          "{}: \"{}\" would get the id {}, which \"{}\" has in tokenizer.json, because the ids "
          "of its vocabulary have gaps; save the tokenizer again with transformers",
          external_token.source, external_token.content, id, vocabulary.token(id));
    }
    ++next_id_;
  }
  add({.content = external_token.content,
       .matched_text = compute_matched_text(),
       .id = static_cast<uint32_t>(id),
       .single_word = external_token.single_word,
       .lstrip = external_token.lstrip,
       .rstrip = external_token.rstrip,
       .normalized = external_token.normalized,
       .special = external_token.special});
}

void AddedTokens::add(AddedToken token) {
  const uint32_t id = token.id;
  const auto [entry, is_inserted] = tokens_by_id_.emplace(id, std::move(token));
  if (is_inserted) tokens_by_content_.emplace(entry->second.content, &entry->second);
}

std::vector<AddedTokens::Segment> AddedTokens::split_at_tokens(std::string_view text, const TokenTrie& trie) {
  std::vector<Segment> segments;
  size_t segment_begin = 0;
  for (size_t pos = 0; pos < text.size();) {
    const auto token_match = trie.find_longest_token(text, pos);
    if (!token_match) {
      ++pos;
      continue;
    }
    ByteRange match{pos, pos + token_match->num_bytes};
    pos = match.end;
    // A rejected match is skipped as a whole, as in `tokenizers`.
    if (token_match->token->single_word && is_next_to_word_character(text, match)) continue;
    if (token_match->token->lstrip) match.begin = find_white_space_begin(text, match.begin, segment_begin);
    if (token_match->token->rstrip) match.end = find_white_space_end(text, match.end);
    if (match.begin > segment_begin) segments.push_back({{segment_begin, match.begin}, nullptr});
    segments.push_back({match, token_match->token});
    segment_begin = pos = match.end;
  }
  if (segment_begin < text.size()) segments.push_back({{segment_begin, text.size()}, nullptr});
  return segments;
}

std::vector<std::string_view> AddedTokens::contents() const {
  std::vector<std::string_view> contents;
  contents.reserve(tokens_by_id_.size());
  for (const auto& [id, token] : tokens_by_id_) contents.emplace_back(token.content);
  return contents;
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto entry = tokens_by_content_.find(content);
  return entry == tokens_by_content_.end() ? nullptr : entry->second;
}

const AddedToken* AddedTokens::find(int64_t id) const {
  if (id < 0 || id >= kAddedTokenIdLimit) return nullptr;
  const auto entry = tokens_by_id_.find(static_cast<uint32_t>(id));
  return entry == tokens_by_id_.end() ? nullptr : &entry->second;
}

}  // namespace vlmtrain::text
