#include "text/tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "text/unicode/characters.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::text {
namespace {

/// Limit of ids. Tables are indexed by id, so a huge id in a damaged file would exhaust memory;
/// vocabularies have some 10^5 tokens. MergeTable needs ids below 2^32 - 1.
constexpr int64_t kVocabularyIdLimit = int64_t{1} << 26U;

/// Returns the id of `token`. Throws UserError (bad data) unless it is an integer in [0,
/// kVocabularyIdLimit).
int64_t parse_vocabulary_id(const std::string& token, const nlohmann::json& id, const JsonNode& node) {
  const bool is_valid = id.is_number_integer() && id.get<int64_t>() >= 0 && id.get<int64_t>() < kVocabularyIdLimit;
  if (!is_valid)
    throw node.error("gives the token \"{}\" the invalid id {}", make_excerpt(token), io::make_json_excerpt(id));
  return id.get<int64_t>();
}

/// Number of code points of the basic multilingual plane.
constexpr size_t kNumBasicPlaneCodePoints = 0x10000;

/// Throws UserError (kBadData) for models other than BPE and unsupported options.
void reject_unsupported_options(const JsonNode& node) {
  // Old files have no type. They are BPE if they have merges, which Bpe requires.
  if (node.has_key("type") && node.get_string("type") != "BPE") {
    throw node.error("has the type \"{}\", which is not supported; BPE is supported", node.get_string("type"));
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (node.has_key(key) && !node.get_string(key).empty()) {
      throw node.at(key).error("is \"{}\", which is not supported; it must be empty", node.get_string(key));
    }
  }
  if (node.has_key("dropout") && node.at("dropout").value() != 0) {
    throw node.at("dropout").error("is not 0, so the same text would give different ids each time; set it to null");
  }
}

/// Parses a merge, "a b" or ["a", "b"]. Returns nothing for other values.
std::optional<std::pair<std::string, std::string>> parse_merge(const nlohmann::json& value) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    const size_t space_pos = text.find(' ');
    if (space_pos == std::string::npos || text.find(' ', space_pos + 1) != std::string::npos) return std::nullopt;
    return std::pair(text.substr(0, space_pos), text.substr(space_pos + 1));
  }
  if (!value.is_array() || value.size() != 2 || !value[0].is_string() || !value[1].is_string()) return std::nullopt;
  return std::pair(value[0].get<std::string>(), value[1].get<std::string>());
}

/// Returns whether the first merge applies after the second one. Merges apply by ascending rank,
/// and from left to right among equal ranks.
bool is_later_merge(const Merge& first, int32_t first_left, const Merge& second, int32_t second_left) {
  return first.rank != second.rank ? first.rank > second.rank : first_left > second_left;
}

}  // namespace

Vocabulary::Vocabulary(const JsonNode& node) {
  const nlohmann::json& entries = node.value();
  if (!entries.is_object()) throw node.error("must be an object {{token: id}}");
  int64_t max_id = -1;
  for (const auto& [token, id] : entries.items()) max_id = std::max(max_id, parse_vocabulary_id(token, id, node));
  tokens_.resize(static_cast<size_t>(max_id + 1));
  ids_by_token_.reserve(entries.size());
  for (const auto& [token, id] : entries.items()) {
    if (token.empty()) continue;
    std::string& token_slot = tokens_[id.get<size_t>()];
    if (!token_slot.empty())
      throw node.error("gives the id {} to \"{}\" and to \"{}\"", id.get<size_t>(), token_slot, token);
    token_slot = token;
    ids_by_token_.emplace(token_slot, id.get<uint32_t>());
  }
}

Bpe::Bpe(const JsonNode& node)
    : vocabulary_((reject_unsupported_options(node), node.at("vocab"))),
      merge_table_(node.at("merges").value().size()) {
  ignore_merges_ = node.get_bool("ignore_merges", false);
  byte_fallback_ = node.get_bool("byte_fallback", false);
  fuse_unk_ = node.get_bool("fuse_unk", false);
  if (node.has_key("unk_token")) {
    unk_token_id_ = vocabulary_.find(node.get_string("unk_token"));
    if (!unk_token_id_)
      throw node.at("unk_token").error("is \"{}\", which model.vocab lacks", node.get_string("unk_token"));
  }
  read_merges(node);
  fill_character_token_ids();
  for (size_t byte = 0; byte < byte_token_ids_.size(); ++byte) {
    byte_token_ids_[byte] = vocabulary_.find(fmt::format("<0x{:02X}>", byte)).value_or(kNoTokenId);
  }
}

void Bpe::read_merges(const JsonNode& node) {
  const JsonNode merges_node = node.at("merges");
  if (!merges_node.value().is_array()) throw merges_node.error("must be a list");
  uint32_t rank = 0;
  for (const nlohmann::json& item : merges_node.value()) {
    const auto merge_pair = parse_merge(item);
    if (!merge_pair)
      throw merges_node.error("has {} at index {}; a merge must be \"a b\" or [\"a\", \"b\"]",
                              io::make_json_excerpt(item), rank);
    const auto get_token_id = [&](const std::string& token) {
      const auto id = vocabulary_.find(token);
      if (!id) {
        throw merges_node.error(
            "has a merge at index {} with the token \"{}\", which model.vocab lacks; download the file again", rank,
            token);
      }
      return *id;
    };
    const auto& [left, right] = *merge_pair;
    merge_table_.insert(get_token_id(left), get_token_id(right), {rank, get_token_id(left + right)});
    ++rank;
  }
}

void Bpe::fill_character_token_ids() {
  character_token_ids_.assign(kNumBasicPlaneCodePoints, kNoTokenId);
  for (size_t id = 0; id < vocabulary_.tokens().size(); ++id) {
    const std::string& token = vocabulary_.tokens()[id];
    if (token.empty()) continue;
    const Utf8Character utf8_character = read_utf8(token, 0);
    if (utf8_character.num_bytes == token.size() && utf8_character.code_point < kNumBasicPlaneCodePoints) {
      character_token_ids_[utf8_character.code_point] = static_cast<uint32_t>(id);
    }
  }
}

uint32_t Bpe::find_character_token_id(char32_t code_point, std::string_view character) const {
  return code_point < kNumBasicPlaneCodePoints ? character_token_ids_[code_point]
                                               : vocabulary_.find(character).value_or(kNoTokenId);
}

void Bpe::append_fallback_tokens(std::string_view character, uint32_t begin, Workspace& workspace) const {
  const auto get_byte_token_id = [this](char byte) { return byte_token_ids_[static_cast<unsigned char>(byte)]; };
  const auto has_byte_token = [&](char byte) { return get_byte_token_id(byte) != kNoTokenId; };
  if (byte_fallback_ && std::all_of(character.begin(), character.end(), has_byte_token)) {
    for (const char byte : character) workspace.symbols_.push_back({get_byte_token_id(byte), begin++, 0, 0, false});
    workspace.is_last_symbol_unk_ = false;
  } else if (unk_token_id_ && !(fuse_unk_ && workspace.is_last_symbol_unk_)) {
    workspace.symbols_.push_back({*unk_token_id_, begin, 0, 0, false});
    workspace.is_last_symbol_unk_ = true;
  }
}

void Bpe::split_into_characters(std::string_view piece, Workspace& workspace) const {
  workspace.symbols_.clear();
  workspace.is_last_symbol_unk_ = false;
  for (uint32_t pos = 0; pos < piece.size();) {
    const Utf8Character utf8_character = read_utf8(piece, pos);
    const std::string_view character = piece.substr(pos, utf8_character.num_bytes);
    if (const uint32_t id = find_character_token_id(utf8_character.code_point, character); id != kNoTokenId) {
      workspace.symbols_.push_back({id, pos, 0, 0, false});
      workspace.is_last_symbol_unk_ = false;
    } else {
      append_fallback_tokens(character, pos, workspace);
    }
    pos += static_cast<uint32_t>(utf8_character.num_bytes);
  }
  const auto count = static_cast<int32_t>(workspace.symbols_.size());
  for (int32_t i = 0; i < count; ++i) {
    workspace.symbols_[static_cast<size_t>(i)].previous = i - 1;
    workspace.symbols_[static_cast<size_t>(i)].next = i + 1 < count ? i + 1 : -1;
  }
}

void Bpe::push_merge_candidate(int32_t left, Workspace& workspace) const {
  if (left < 0) return;
  const Symbol& symbol = workspace.symbols_[static_cast<size_t>(left)];
  if (symbol.next < 0) return;
  const Merge* merge = merge_table_.find(symbol.id, workspace.symbols_[static_cast<size_t>(symbol.next)].id);
  if (merge == nullptr) return;
  workspace.candidate_heap_.push_back({*merge, left});
  std::push_heap(workspace.candidate_heap_.begin(), workspace.candidate_heap_.end(),
                 [](const MergeCandidate& first, const MergeCandidate& second) {
                   return is_later_merge(first.merge, first.left, second.merge, second.left);
                 });
}

void Bpe::merge_symbols(Workspace& workspace) const {
  auto& symbols = workspace.symbols_;
  auto& candidate_heap = workspace.candidate_heap_;
  candidate_heap.clear();
  for (size_t i = 0; i + 1 < symbols.size(); ++i) push_merge_candidate(static_cast<int32_t>(i), workspace);
  while (!candidate_heap.empty()) {
    std::pop_heap(candidate_heap.begin(), candidate_heap.end(),
                  [](const MergeCandidate& first, const MergeCandidate& second) {
                    return is_later_merge(first.merge, first.left, second.merge, second.left);
                  });
    const MergeCandidate candidate = candidate_heap.back();
    candidate_heap.pop_back();
    Symbol& left = symbols[static_cast<size_t>(candidate.left)];
    if (left.is_merged || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    // A symbol may have merged with another neighbor after the candidate was pushed.
    const Merge* merge = merge_table_.find(left.id, right.id);
    if (merge == nullptr || merge->id != candidate.merge.id) continue;
    left.id = candidate.merge.id;
    right.is_merged = true;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].previous = candidate.left;
    push_merge_candidate(left.previous, workspace);
    push_merge_candidate(candidate.left, workspace);
  }
}

void Bpe::encode(std::string_view piece, Workspace& workspace, std::vector<BpeToken>& out) const {
  if (ignore_merges_) {  // a piece that is a token needs no merges
    if (const auto id = vocabulary_.find(piece)) {
      out.push_back({*id, 0});
      return;
    }
  }
  split_into_characters(piece, workspace);
  merge_symbols(workspace);
  for (const Symbol& symbol : workspace.symbols_) {
    if (!symbol.is_merged) out.push_back({symbol.id, symbol.begin});
  }
}

}  // namespace vlmtrain::text
