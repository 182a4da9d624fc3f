#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/tokenizer/json_node.h"

namespace vlmtrain::text {

/// The tokens of the BPE model and their ids. Ids may have gaps.
class Vocabulary {
 public:
  /// Reads `node`, an object {token: id}. Throws UserError (kBadData) for duplicate, negative and
  /// huge ids.
  explicit Vocabulary(const JsonNode& node);

  /// Returns the id of `token`, or nothing.
  std::optional<uint32_t> find(std::string_view token) const {
    const auto entry = ids_by_token_.find(token);
    return entry == ids_by_token_.end() ? std::nullopt : std::optional(entry->second);
  }
  /// Returns the token, empty if no token has this id.
  std::string_view token(int64_t id) const {
    const bool is_in_range = id >= 0 && id < static_cast<int64_t>(tokens_.size());
    return is_in_range ? std::string_view(tokens_[static_cast<size_t>(id)]) : std::string_view();
  }
  /// Returns the number of tokens, which is less than max_id_plus_one() if ids have gaps.
  int64_t num_tokens() const { return static_cast<int64_t>(ids_by_token_.size()); }
  /// Returns the highest id plus one.
  int64_t max_id_plus_one() const { return static_cast<int64_t>(tokens_.size()); }
  /// Returns all tokens by id. Missing ids have an empty string.
  const std::vector<std::string>& tokens() const { return tokens_; }

 private:
  std::vector<std::string> tokens_;
  std::unordered_map<std::string_view, uint32_t> ids_by_token_;  // keys are views of tokens_
};

/// A merge of two adjacent tokens. The lowest rank merges first.
struct Merge {
  uint32_t rank;
  uint32_t id;  ///< id of the merged token
};

/// The merges of a BPE model by pair of ids: an open-addressing hash table, at most half full.
/// Lookups take most of the time of encoding; std::unordered_map is several times slower.
class MergeTable {
 public:
  /// Allocates a table for up to `num_merges` merges. It does not grow.
  explicit MergeTable(size_t num_merges) : slots_(std::bit_ceil(num_merges * 2 + 2)) {}

  /// Sets the merge of the pair of ids (left, right). The last one wins.
  void insert(uint32_t left, uint32_t right, Merge merge) {
    Slot& slot = slots_[find_slot(make_pair_key(left, right))];
    slot = {make_pair_key(left, right), merge};
  }
  /// Returns the merge of the pair (left, right), or null.
  const Merge* find(uint32_t left, uint32_t right) const {
    const Slot& slot = slots_[find_slot(make_pair_key(left, right))];
    return slot.key == kEmptySlotKey ? nullptr : &slot.merge;
  }

 private:
  static constexpr uint64_t kEmptySlotKey = ~uint64_t{0};          // ids are below 2^26, so no pair has this key
  static constexpr uint64_t kHashMultiplier = 0x9E3779B97F4A7C15;  // 2^64 divided by the golden ratio (Knuth)
  static constexpr uint32_t kHashShift = 20;                       // the low bits of a product are the least mixed
  /// An entry of the hash table.
  struct Slot {
    uint64_t key = kEmptySlotKey;
    Merge merge{};
  };

  static uint64_t make_pair_key(uint32_t left, uint32_t right) { return uint64_t{left} << 32U | right; }
  size_t find_slot(uint64_t key) const {
    const size_t slot_mask = slots_.size() - 1;
    size_t index = (key * kHashMultiplier) >> kHashShift & slot_mask;
    while (slots_[index].key != kEmptySlotKey && slots_[index].key != key) index = (index + 1) & slot_mask;
    return index;
  }

  std::vector<Slot> slots_;
};

/// A token of a piece of text.
struct BpeToken {
  uint32_t id;
  uint32_t begin;  ///< byte offset in the piece
};

/// The model of tokenizer.json with type BPE. Immutable and thread-safe; each thread needs its own
/// Workspace.
class Bpe {
 public:
  /// Reads `node`, the section `model` of tokenizer.json. Throws UserError (kBadData) for other
  /// model types, unsupported options, and merges of tokens that the vocabulary lacks.
  explicit Bpe(const JsonNode& node);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  /// The buffers of encode(). Reusing one object for many pieces saves allocations.
  class Workspace;

  /// Appends the tokens of `piece` to `out` in O(n log n). Depending on the file, characters that
  /// the vocabulary lacks become the tokens of their bytes (byte_fallback), the unknown token, or
  /// nothing. REQUIRES valid UTF-8.
  void encode(std::string_view piece, Workspace& workspace, std::vector<BpeToken>& out) const;

 private:
  static constexpr uint32_t kNoTokenId = ~uint32_t{0};

  /// A token of the piece. Symbols form a doubly linked list by index; -1 marks its ends.
  struct Symbol {
    uint32_t id;
    uint32_t begin;
    int32_t previous;
    int32_t next;
    bool is_merged;  // merged into the symbol before it
  };
  /// A possible merge of a symbol and the one after it.
  struct MergeCandidate {
    Merge merge;
    int32_t left;  // index of the left symbol
  };

  /// Reads the key `merges` of `node`. Throws UserError (bad data) for a merge of unknown tokens.
  void read_merges(const JsonNode& node);
  /// Fills character_token_ids_ from the vocabulary.
  void fill_character_token_ids();
  /// Returns the id of a character, or kNoTokenId.
  uint32_t find_character_token_id(char32_t code_point, std::string_view character) const;
  /// Appends the byte tokens or the unknown token for a character that the vocabulary lacks.
  void append_fallback_tokens(std::string_view character, uint32_t begin, Workspace& workspace) const;
  /// Sets the symbols of `workspace` to the characters of `piece`.
  void split_into_characters(std::string_view piece, Workspace& workspace) const;
  /// Adds the merge of symbol `left` and the symbol after it to the heap, if the table has this
  /// merge.
  void push_merge_candidate(int32_t left, Workspace& workspace) const;
  /// Merges pairs by ascending rank until no merge applies.
  void merge_symbols(Workspace& workspace) const;

  Vocabulary vocabulary_;
  MergeTable merge_table_;
  bool ignore_merges_ = false;
  bool byte_fallback_ = false;
  bool fuse_unk_ = false;
  std::optional<uint32_t> unk_token_id_;
  std::array<uint32_t, 256> byte_token_ids_{};  // ids of "<0x00>" to "<0xFF>", or kNoTokenId
  std::vector<uint32_t> character_token_ids_;   // ids of the characters of the basic multilingual plane, or kNoTokenId
};

/// The buffers of Bpe::encode(). Not thread-safe.
class Bpe::Workspace {
  friend class Bpe;
  std::vector<Symbol> symbols_;
  std::vector<MergeCandidate> candidate_heap_;
  bool is_last_symbol_unk_ = false;  // whether the last symbol is the unknown token, see fuse_unk_
};

}  // namespace vlmtrain::text
