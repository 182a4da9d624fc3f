#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "text/tokenizer/json_node.h"
#include "text/merge_table.h"
#include "text/vocabulary.h"

namespace vlmtrain::text {

/// A token of a piece and where in the piece it begins.
struct BpeToken {
  uint32_t id;
  uint32_t begin;
};

/// The model of tokenizer.json with type BPE. Thread-safe; each thread brings its own Workspace.
class Bpe {
 public:
  /// Reads the section `model`.
  explicit Bpe(const JsonNode& node);

  const Vocabulary& vocabulary() const { return vocabulary_; }

  /// Memory that is used again from piece to piece.
  class Workspace;

  /// Appends the tokens of `piece` in O(n log n). Characters that are not in the vocabulary become their bytes' tokens
  /// (byte_fallback), the unknown token, or nothing, as the file says.
  void encode(std::string_view piece, Workspace& workspace, std::vector<BpeToken>& out) const;

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};

  struct Symbol {
    uint32_t id;
    uint32_t begin;
    int32_t previous;
    int32_t next;
    bool merged;  // into the symbol before it
  };
  struct Candidate {
    Merge merge;
    int32_t left;  // index of the left symbol
  };

  void read_merges(const JsonNode& node);
  void index_characters();
  uint32_t find_character_id(char32_t code_point, std::string_view character) const;
  void append_unk(std::string_view character, uint32_t begin, Workspace& workspace) const;
  void split_characters(std::string_view piece, Workspace& workspace) const;
  void push_candidate(int32_t left, Workspace& workspace) const;
  void merge_symbols(Workspace& workspace) const;

  Vocabulary vocabulary_;
  MergeTable merges_;
  bool ignore_merges_ = false;
  bool byte_fallback_ = false;
  bool fuse_unk_ = false;
  std::optional<uint32_t> unk_token_id_;
  std::array<uint32_t, 256> byte_ids_{};  // of "<0x00>" … "<0xFF>"
  std::vector<uint32_t> character_ids_;   // of the characters of the basic multilingual plane
};

class Bpe::Workspace {
  friend class Bpe;
  std::vector<Symbol> symbols_;
  std::vector<Candidate> heap_;
  bool last_is_unknown_ = false;  // the last symbol stands for an unknown character
};

}  // namespace vlmtrain::text
