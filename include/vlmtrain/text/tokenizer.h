#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::text {

struct ExternalToken;

/// Token ids of a text and where in that text each token begins.
struct Encoding {
  std::vector<int64_t> ids;
  /// Byte offset in the original text (before normalisation) at which the token's text begins; as many as `ids`,
  /// never decreasing. A token that begins inside a character keeps the exact byte. What a normalizer inserts takes the
  /// offset of what follows it. Tokens that the post-processor adds take the offset of their neighbour: the next
  /// token's before the text, the last token's after it.
  std::vector<uint32_t> starts;
};

/// A byte-pair-encoding tokenizer as a Hugging Face `tokenizer.json` defines it (library `tokenizers`, format version
/// 1.0): added tokens, normalizer, pre-tokenizer, BPE model, post-processor, decoder. Sections `truncation` and
/// `padding` are ignored, since transformers sets both in each call. Gives the ids that `tokenizers` gives, except that
/// character classes in regexes follow PCRE2's Unicode version and `\s` also takes U+180E.
///
/// Immutable after loading: all methods may be called from any number of threads at once.
class Tokenizer {
 public:
  /// Reads `tokenizer_json` alone; read_tokenizer() reads all files of a checkpoint. Throws UserError (bad data) if the
  /// file cannot be read, is no JSON, has a component or option that is not supported (the message names it and the
  /// supported ones) or contradicts itself.
  ///
  /// Of `extra_special_tokens`, those that the file has not are added behind all others, in order, as special tokens
  /// that are not normalised: what transformers makes of from_pretrained(…, extra_special_tokens=…).
  static Tokenizer from_file(const std::filesystem::path& tokenizer_json,
                             std::span<const std::string> extra_special_tokens = {});
  /// The same from memory; `source_name` stands for the file in messages.
  static Tokenizer from_json(std::string_view json_text, const std::string& source_name,
                             std::span<const std::string> extra_special_tokens = {});

  /// The same with tokens that other files name (read_tokenizer), in the order in which they get their ids.
  static Tokenizer from_json_with_tokens(std::string_view json_text, const std::string& source_name,
                                         std::span<const ExternalToken> external_tokens);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Encodes `text`, which must be UTF-8: a UserError (bad data) gives the offset of the first byte that is not.
  /// Added tokens inside the text become their ids. With `add_special_tokens` the post-processor puts its tokens around
  /// (such as `<s>`). Takes O(n log n) for any input.
  Encoding encode(std::string_view text, bool add_special_tokens = false) const;

  /// The text of `ids`. Ids that no token has are left out, and special tokens too if `skip_special_tokens`. Bytes that
  /// make no UTF-8 become U+FFFD.
  std::string decode(std::span<const int64_t> ids, bool skip_special_tokens) const;

  std::optional<int64_t> token_to_id(std::string_view token) const;
  /// The token as the vocabulary spells it (byte-level tokens in their printable alphabet), empty if `id` is of none.
  /// Valid as long as the tokenizer.
  std::string_view id_to_token(int64_t id) const;
  /// Whether `id` is an added token marked `special`.
  bool is_special(int64_t id) const;
  /// The added tokens as the files spell them, by ascending ids. Valid as long as the tokenizer.
  std::vector<std::string_view> added_tokens() const;
  /// Highest id, added tokens included, plus one. A model's embedding may have more rows.
  int64_t vocab_size() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace vlmtrain::text
