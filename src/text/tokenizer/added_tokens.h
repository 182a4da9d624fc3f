#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/bpe.h"
#include "text/tokenizer/external_tokens.h"
#include "text/tokenizer/json_node.h"
#include "text/tokenizer/normalizer.h"
#include "text/tokenizer/pattern.h"

namespace vlmtrain::text {

/// A token that is cut out of the text before the model encodes it, with the properties of
/// tokenizer.json.
struct AddedToken {
  std::string content;
  std::string spelling;  ///< the text to match and decode: `content`, normalized if `normalized`
  uint32_t id;
  bool single_word;  ///< matches no part of a word
  bool lstrip;       ///< removes white space before it
  bool rstrip;       ///< removes white space after it
  bool normalized;   ///< matches in the normalized text, else in the original
  bool special;
};

/// A trie that finds the longest token at a position of a text.
class TokenTrie {
 public:
  /// A token found in a text, and the length of its spelling.
  struct Match {
    size_t bytes;
    const AddedToken* token;
  };

  /// Adds the spelling of `token`, which must outlive the trie.
  void insert(const AddedToken& token);
  /// Returns the longest token that begins at byte `pos`, or nothing.
  std::optional<Match> find_longest(std::string_view text, size_t pos) const;

 private:
  /// A node of the trie, with its children by byte.
  struct Node {
    std::vector<std::pair<unsigned char, uint32_t>> children;
    const AddedToken* token = nullptr;
  };
  /// Returns the child of `node` for `byte`, or 0.
  uint32_t find_child(uint32_t node, unsigned char byte) const;

  std::vector<Node> nodes_{1};
  std::array<uint32_t, 256> root_children_{};  // by byte, because most lookups end at the root
};

/// The section `added_tokens` of tokenizer.json, and the tokens of other files. Immutable and
/// thread-safe.
class AddedTokens {
 public:
  /// A part of a text: an added token, or text between them (`token` is null).
  struct Segment {
    Range range;
    const AddedToken* token;
  };

  /// Reads the tokens of the document `root`, then adds `external_tokens` that it lacks.
  /// `normalizer` may be null. Throws UserError (kBadData) for a token whose id differs from that
  /// of the library `tokenizers` (AddedVocabulary::add_tokens): the vocabulary's id, else the
  /// number of all tokens so far.
  AddedTokens(const JsonNode& root, const Vocabulary& vocabulary, const Normalizer* normalizer,
              std::span<const ExternalToken> external_tokens = {});

  /// Splits an original text at the tokens that are not `normalized`. Segments are in order, none
  /// empty.
  std::vector<Segment> split_original(std::string_view text) const { return split(text, original_trie_); }
  /// Splits a normalized text at the tokens that are `normalized`.
  std::vector<Segment> split_normalized(std::string_view text) const { return split(text, normalized_trie_); }

  /// Each returns the token, or null.
  const AddedToken* find(std::string_view content) const;
  const AddedToken* find(int64_t id) const;
  /// Returns the contents of all tokens by ascending id.
  std::vector<std::string_view> contents() const;
  /// Returns the highest id plus one, 0 without tokens.
  int64_t size() const { return tokens_by_id_.empty() ? 0 : int64_t{tokens_by_id_.rbegin()->first} + 1; }

 private:
  /// Adds a token unless one has its id.
  void add(AddedToken token);
  void add_file_token(const JsonNode& node, const Vocabulary& vocabulary, const Normalizer* normalizer);
  void add_external_token(const ExternalToken& token, const Vocabulary& vocabulary, const Normalizer* normalizer);
  static std::vector<Segment> split(std::string_view text, const TokenTrie& trie);

  std::map<uint32_t, AddedToken> tokens_by_id_;
  std::map<std::string_view, const AddedToken*> tokens_by_content_;
  TokenTrie original_trie_;
  TokenTrie normalized_trie_;
  int64_t next_id_;  // id of the next token that the vocabulary lacks
};

}  // namespace vlmtrain::text
