#include "text/added_tokens.h"

#include <algorithm>
#include <utility>

#include "text/utf8.h"
#include "vlmtrain/base/log.h"

namespace vlmtrain::text {
namespace {

constexpr int64_t kMostIds = int64_t{1} << 26U;

/// Begin of the character that ends at `end`; REQUIRES end > 0.
size_t previous_character(std::string_view text, size_t end) {
  size_t begin = end - 1;
  while (begin > 0 && (static_cast<unsigned char>(text[begin]) & 0xC0U) == 0x80U) --begin;
  return begin;
}

bool is_inside_word(std::string_view text, Range match) {
  const bool before =
      match.begin > 0 && is_word_character(read_utf8(text, previous_character(text, match.begin)).code_point);
  const bool after = match.end < text.size() && is_word_character(read_utf8(text, match.end).code_point);
  return before || after;
}

size_t strip_left(std::string_view text, size_t begin, size_t limit) {
  while (begin > limit) {
    const size_t previous = previous_character(text, begin);
    if (!is_white_space(read_utf8(text, previous).code_point)) break;
    begin = previous;
  }
  return begin;
}

size_t strip_right(std::string_view text, size_t end) {
  while (end < text.size()) {
    const Utf8Step step = read_utf8(text, end);
    if (!is_white_space(step.code_point)) break;
    end += step.bytes;
  }
  return end;
}

std::string normalize(const std::string& content, const Normalizer* normalizer) {
  if (normalizer == nullptr) return content;
  AlignedText text = AlignedText::of(content, 0);
  normalizer->apply(text);
  return text.bytes;
}

AddedToken parse_token(const JsonNode& node, const Vocabulary& vocabulary, const Normalizer* normalizer) {
  AddedToken token{node.string_at("content"),
                   "",
                   0,
                   node.boolean_at("single_word", false),
                   node.boolean_at("lstrip", false),
                   node.boolean_at("rstrip", false),
                   node.boolean_at("normalized", true),
                   node.boolean_at("special", false)};
  token.spelling = token.normalized ? normalize(token.content, normalizer) : token.content;
  const int64_t id = node.at("id").integer();
  if (id < 0 || id >= kMostIds) throw node.error("has the id {}, which is none", id);
  token.id = static_cast<uint32_t>(id);
  const auto known = vocabulary.find(token.content);
  if (known && *known != token.id) {
    throw node.error("gives \"{}\" the id {}, but model.vocab gives it {}; fetch the file again", token.content, id,
                     *known);
  }
  return token;
}

}  // namespace

void TokenFinder::insert(const AddedToken& token) {
  uint32_t node = 0;
  for (const char c : token.spelling) {
    const auto byte = static_cast<unsigned char>(c);
    uint32_t next = child(node, byte);
    if (next == 0) {
      next = static_cast<uint32_t>(nodes_.size());
      if (node == 0) first_[byte] = next;
      nodes_[node].children.emplace_back(byte, next);
      nodes_.emplace_back();
    }
    node = next;
  }
  nodes_[node].token = &token;
}

uint32_t TokenFinder::child(uint32_t node, unsigned char byte) const {
  if (node == 0) return first_[byte];
  for (const auto& [label, next] : nodes_[node].children) {
    if (label == byte) return next;
  }
  return 0;
}

std::optional<TokenFinder::Found> TokenFinder::longest_at(std::string_view text, size_t at) const {
  std::optional<Found> longest;
  uint32_t node = 0;
  for (size_t i = at; i < text.size(); ++i) {
    node = child(node, static_cast<unsigned char>(text[i]));
    if (node == 0) break;
    if (nodes_[node].token != nullptr) longest = Found{i + 1 - at, nodes_[node].token};
  }
  return longest;
}

AddedTokens::AddedTokens(const JsonNode& root, const Vocabulary& vocabulary, const Normalizer* normalizer,
                         std::span<const OutsideToken> outside)
    : next_id_(vocabulary.count()) {
  if (root.has("added_tokens")) {
    for (const JsonNode& node : root.list_at("added_tokens")) add_of_file(node, vocabulary, normalizer);
  }
  for (const OutsideToken& token : outside) add_outside(token, vocabulary, normalizer);
  for (const auto& [id, token] : by_id_) {
    (token.normalized ? normalized_ : original_).insert(token);
  }
}

void AddedTokens::add_of_file(const JsonNode& node, const Vocabulary& vocabulary, const Normalizer* normalizer) {
  AddedToken token = parse_token(node, vocabulary, normalizer);
  if (token.content.empty()) return;
  if (const AddedToken* const same = find(int64_t{token.id})) {
    throw node.error("has the id {}, which \"{}\" has too", token.id, same->content);
  }
  if (const AddedToken* const same = find(token.content)) {
    throw node.error("gives \"{}\" the id {}, and an entry before it {}; remove one of them", token.content, token.id,
                     same->id);
  }
  if (!vocabulary.find(token.content)) {
    if (int64_t{token.id} != next_id_) {
      throw node.error(
          "gives \"{}\" the id {}, but transformers and tokenizers give it {}, the next one, whatever stands here: the "
          "model would be asked with other tokens than it is trained with; list the added tokens by their ids and "
          "without gaps (a reserved token for each missing id), as the embedding has them",
          token.content, token.id, next_id_);
    }
    ++next_id_;
  }
  add(std::move(token));
}

void AddedTokens::add_outside(const OutsideToken& outside, const Vocabulary& vocabulary, const Normalizer* normalizer) {
  if (outside.content.empty()) return;
  const auto spelling = [&] { return outside.normalized ? normalize(outside.content, normalizer) : outside.content; };
  if (const AddedToken* const same = find(outside.content)) {
    if (outside.id && *outside.id != same->id) {
      spdlog::warn(
          "{}: gives \"{}\" the id {}, and tokenizer.json {}; the latter is taken, as transformers does: correct the "
          "other file",
          outside.source, outside.content, *outside.id, same->id);
    }
    if (!outside.overrides) return;
    AddedToken& token = by_id_.at(same->id);
    token.spelling = spelling();
    token.single_word = outside.single_word;
    token.lstrip = outside.lstrip;
    token.rstrip = outside.rstrip;
    token.normalized = outside.normalized;
    token.special = outside.special;
    return;
  }
  const auto known = vocabulary.find(outside.content);
  const int64_t id = known ? int64_t{*known} : next_id_;
  if (outside.id && *outside.id != id) {
    throw data_error(
        "{}: gives \"{}\" the id {}, but transformers gives it {}, since tokenizer.json {}; correct the id, or save "
        "the "
        "tokenizer again with transformers",
        outside.source, outside.content, *outside.id, id, known ? "has it so" : "lacks it and that is the next one");
  }
  if (!known) {
    if (!vocabulary.token(id).empty()) {
      throw data_error("{}: \"{}\" would get the id {}, which tokenizer.json gives \"{}\": its vocabulary has gaps",
                       outside.source, outside.content, id, vocabulary.token(id));
    }
    ++next_id_;
  }
  add({.content = outside.content,
       .spelling = spelling(),
       .id = static_cast<uint32_t>(id),
       .single_word = outside.single_word,
       .lstrip = outside.lstrip,
       .rstrip = outside.rstrip,
       .normalized = outside.normalized,
       .special = outside.special});
}

void AddedTokens::add(AddedToken token) {
  const uint32_t id = token.id;
  const auto [entry, is_new] = by_id_.emplace(id, std::move(token));
  if (is_new) by_content_.emplace(entry->second.content, &entry->second);
}

std::vector<AddedTokens::Segment> AddedTokens::split(std::string_view text, const TokenFinder& finder) {
  std::vector<Segment> segments;
  size_t done = 0;
  for (size_t at = 0; at < text.size();) {
    const auto found = finder.longest_at(text, at);
    if (!found) {
      ++at;
      continue;
    }
    Range match{at, at + found->bytes};
    at = match.end;
    if (found->token->single_word && is_inside_word(text, match)) continue;
    if (found->token->lstrip) match.begin = strip_left(text, match.begin, done);
    if (found->token->rstrip) match.end = strip_right(text, match.end);
    if (match.begin > done) segments.push_back({{done, match.begin}, nullptr});
    segments.push_back({match, found->token});
    done = at = match.end;
  }
  if (done < text.size()) segments.push_back({{done, text.size()}, nullptr});
  return segments;
}

std::vector<std::string_view> AddedTokens::contents() const {
  std::vector<std::string_view> contents;
  contents.reserve(by_id_.size());
  for (const auto& [id, token] : by_id_) contents.emplace_back(token.content);
  return contents;
}

const AddedToken* AddedTokens::find(std::string_view content) const {
  const auto found = by_content_.find(content);
  return found == by_content_.end() ? nullptr : found->second;
}

const AddedToken* AddedTokens::find(int64_t id) const {
  if (id < 0 || id >= kMostIds) return nullptr;
  const auto found = by_id_.find(static_cast<uint32_t>(id));
  return found == by_id_.end() ? nullptr : &found->second;
}

}  // namespace vlmtrain::text
