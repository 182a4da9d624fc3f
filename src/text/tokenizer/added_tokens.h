#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/json_node.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/external_tokens.h"
#include "text/tokenizer/pattern.h"
#include "text/vocabulary.h"

namespace vlmtrain::text {

/// A token that is found in the text before the model sees it.
struct AddedToken {
  std::string content;
  std::string spelling;  ///< what is looked for, and decoded: the content, normalised if `normalized`
  uint32_t id;
  bool single_word;  ///< not inside a word
  bool lstrip;       ///< takes the white space before it
  bool rstrip;       ///< takes the white space after it
  bool normalized;   ///< is looked for in the normalised text
  bool special;
};

/// Finds the longest of many strings at each place of a text in one pass.
class TokenTrie {
 public:
  struct Match {
    size_t bytes;
    const AddedToken* token;
  };

  /// The token must outlive the finder.
  void insert(const AddedToken& token);
  std::optional<Match> find_longest(std::string_view text, size_t pos) const;

 private:
  struct Node {
    std::vector<std::pair<unsigned char, uint32_t>> children;
    const AddedToken* token = nullptr;
  };
  uint32_t find_child(uint32_t node, unsigned char byte) const;

  std::vector<Node> nodes_{1};
  std::array<uint32_t, 256> root_children_{};  // the root's children: most places of a text end here
};

/// The section `added_tokens`. Thread-safe.
class AddedTokens {
 public:
  /// A stretch of text: an added token, or none.
  struct Segment {
    Range range;
    const AddedToken* token;
  };

  /// `root` is the document; `normalizer` may be null. `external_tokens` are added in order where there is no such
  /// added token yet. Throws where a token's id is not the one that the library `tokenizers` gives it: the
  /// vocabulary's, else the next after the number of its tokens and the added ones (AddedVocabulary::add_tokens).
  AddedTokens(const JsonNode& root, const Vocabulary& vocabulary, const Normalizer* normalizer,
              std::span<const ExternalToken> external_tokens = {});

  /// Cuts the original text at the tokens that are not `normalized`: stretches from left to right, none empty.
  std::vector<Segment> split_original(std::string_view text) const { return split(text, original_trie_); }
  /// Cuts a normalised text at those that are.
  std::vector<Segment> split_normalized(std::string_view text) const { return split(text, normalized_trie_); }

  const AddedToken* find(std::string_view content) const;
  const AddedToken* find(int64_t id) const;
  /// By ascending ids.
  std::vector<std::string_view> contents() const;
  /// Highest id plus one, 0 without tokens.
  int64_t size() const { return tokens_by_id_.empty() ? 0 : int64_t{tokens_by_id_.rbegin()->first} + 1; }

 private:
  void add(AddedToken token);
  void add_file_token(const JsonNode& node, const Vocabulary& vocabulary, const Normalizer* normalizer);
  void add_external_token(const ExternalToken& token, const Vocabulary& vocabulary, const Normalizer* normalizer);
  static std::vector<Segment> split(std::string_view text, const TokenTrie& trie);

  std::map<uint32_t, AddedToken> tokens_by_id_;
  std::map<std::string_view, const AddedToken*> tokens_by_content_;
  TokenTrie original_trie_;
  TokenTrie normalized_trie_;
  int64_t next_id_;  // of a token that the vocabulary lacks
};

}  // namespace vlmtrain::text
