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
#include "text/tokenizer/pipeline.h"

namespace vlmtrain::text {

/// A token that is matched in the text before the BPE model encodes the rest. The fields have the
/// names and meanings of `added_tokens` in tokenizer.json.
struct AddedToken {
  std::string content;
  std::string matched_text;  ///< text to match and decode: `content`, normalized if `normalized` is set
  uint32_t id;
  bool single_word;  ///< does not match inside a word
  bool lstrip;       ///< the match includes white space before it
  bool rstrip;       ///< the match includes white space after it
  bool normalized;   ///< matches in the normalized text; false: in the original text
  bool special;      ///< skipped by decode() with skip_special_tokens
};

/// A trie that finds the longest token at a position of a text.
class TokenTrie {
 public:
  /// A token found in a text.
  struct Match {
    size_t num_bytes;  ///< length of its matched_text
    const AddedToken* token;
  };

  /// Adds the matched_text of `token`, which must outlive the trie.
  void insert(const AddedToken& token);
  /// Returns the longest token that begins at byte `pos`, or nothing.
  std::optional<Match> find_longest_token(std::string_view text, size_t pos) const;

 private:
  /// A node of the trie. `children` holds pairs of a byte and the index of a node.
  struct Node {
    std::vector<std::pair<unsigned char, uint32_t>> children;
    const AddedToken* token = nullptr;  // the token that ends here, or null
  };
  /// Returns the index of the child of `node` for `byte`, or 0 (the root) if there is none.
  uint32_t find_child(uint32_t node, unsigned char byte) const;

  std::vector<Node> nodes_{1};
  std::array<uint32_t, 256> root_children_{};  // by byte; a table, because most lookups end at the root
};

/// The section `added_tokens` of tokenizer.json, and the tokens of other files. Immutable and
/// thread-safe.
class AddedTokens {
 public:
  /// A part of a text: an added token, or text between added tokens (`token` is null).
  struct Segment {
    ByteRange range;
    const AddedToken* token;
  };

  /// Reads the tokens of `root`, the document of a tokenizer.json, then adds the tokens of
  /// `external_tokens` that it lacks. `normalizer` may be null. Throws UserError (kBadData) for a
  /// token whose id differs from the id that the library `tokenizers` assigns
  /// (AddedVocabulary::add_tokens): the id in the vocabulary, or else the number of all tokens so
  /// far.
  AddedTokens(const JsonNode& root, const Vocabulary& vocabulary, const Normalizer* normalizer,
              std::span<const ExternalToken> external_tokens = {});

  /// Splits an original text at the tokens that are not `normalized`. Segments are in order and
  /// cover the text; none is empty.
  std::vector<Segment> split_original_text(std::string_view text) const {
    return split_at_tokens(text, original_trie_);
  }
  /// Splits a normalized text at the tokens that are `normalized`.
  std::vector<Segment> split_normalized_text(std::string_view text) const {
    return split_at_tokens(text, normalized_trie_);
  }

  /// Each returns the token with this content or id, or null. Valid as long as this object.
  const AddedToken* find(std::string_view content) const;
  const AddedToken* find(int64_t id) const;
  /// Returns the contents of all tokens by ascending id. Valid as long as this object.
  std::vector<std::string_view> contents() const;
  /// Returns the highest id plus one, or 0 if there are no tokens.
  int64_t max_id_plus_one() const { return tokens_by_id_.empty() ? 0 : int64_t{tokens_by_id_.rbegin()->first} + 1; }

 private:
  /// Adds a token unless another token has the same id.
  void add(AddedToken token);
  /// Adds an entry of `added_tokens`.
  void add_tokenizer_json_token(const JsonNode& node, const Vocabulary& vocabulary, const Normalizer* normalizer);
  void add_external_token(const ExternalToken& token, const Vocabulary& vocabulary, const Normalizer* normalizer);
  /// Splits `text` at the longest tokens of `trie`, from left to right.
  static std::vector<Segment> split_at_tokens(std::string_view text, const TokenTrie& trie);

  std::map<uint32_t, AddedToken> tokens_by_id_;
  std::map<std::string_view, const AddedToken*> tokens_by_content_;
  TokenTrie original_trie_;
  TokenTrie normalized_trie_;
  int64_t next_id_;  // id of the next added token that is not in the vocabulary
};

}  // namespace vlmtrain::text
