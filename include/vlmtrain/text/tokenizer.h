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

/// Token ids of a text, and the offset at which each token begins.
struct Encoding {
  std::vector<int64_t> ids;
  /// Byte offset in the original text (before normalization) at which each token's text begins;
  /// same size as `ids`, never decreasing. A token that begins inside a character keeps the exact
  /// byte. Text that a normalizer inserts has the offset of the text after it. Tokens of the
  /// post-processor have the offset of their neighbor: the next token's before the text, the last
  /// token's after it.
  std::vector<uint32_t> starts;
};

/// A byte-pair-encoding tokenizer as a Hugging Face `tokenizer.json` defines it (library
/// `tokenizers`, format version 1.0): added tokens, normalizer, pre-tokenizer, BPE model,
/// post-processor, decoder. The sections `truncation` and `padding` are ignored, because
/// transformers sets both in each call. The ids equal those of `tokenizers`, with one exception:
/// character classes in regular expressions follow PCRE2's Unicode version, and `\s` also matches
/// U+180E.
///
/// Immutable after construction and thread-safe.
class Tokenizer {
 public:
  /// Reads `tokenizer_json` alone; read_tokenizer() reads all files of a checkpoint. Throws
  /// UserError (bad data) if the file cannot be read, is not JSON, contradicts itself, or has an
  /// unsupported component or option (the message lists the supported ones).
  ///
  /// Each of `extra_special_tokens` that the file lacks gets the next id, as a special token that
  /// is not normalized, like transformers' from_pretrained(…, extra_special_tokens=…).
  static Tokenizer from_file(const std::filesystem::path& tokenizer_json,
                             std::span<const std::string> extra_special_tokens = {});

  /// Parses the content of a tokenizer.json. `source_name` names the file in messages. Otherwise as
  /// from_file().
  static Tokenizer from_json(std::string_view json_text, const std::string& source_name,
                             std::span<const std::string> extra_special_tokens = {});

  /// Parses the content of a tokenizer.json and adds the tokens of other files, in the order of
  /// their ids. Otherwise as from_json().
  static Tokenizer from_json_with_external_tokens(std::string_view json_text, const std::string& source_name,
                                                  std::span<const ExternalToken> external_tokens);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  /// Returns the tokens of `text`. Added tokens inside the text become their ids. With
  /// `add_special_tokens`, the post-processor adds its tokens (such as `<s>`). Takes O(n log n) for
  /// any input. Throws UserError (bad data) with the offset of the first invalid byte if `text` is
  /// not UTF-8.
  Encoding encode(std::string_view text, bool add_special_tokens = false) const;

  /// Returns the text of `ids`. Skips unknown ids, and with `skip_special_tokens` special tokens.
  /// Bytes that are not UTF-8 become U+FFFD.
  std::string decode(std::span<const int64_t> ids, bool skip_special_tokens) const;

  /// Returns the id of `token`, or nothing.
  std::optional<int64_t> token_to_id(std::string_view token) const;

  /// Returns the token as the vocabulary spells it (byte-level tokens in their printable alphabet),
  /// empty for unknown ids. Valid as long as the tokenizer.
  std::string_view id_to_token(int64_t id) const;

  /// Returns whether `id` is an added token that is marked `special`.
  bool is_special(int64_t id) const;

  /// Returns the added tokens as the files spell them, by ascending id. Valid as long as the
  /// tokenizer.
  std::vector<std::string_view> added_tokens() const;

  /// Returns the highest id plus one, added tokens included. A model's embedding may have more
  /// rows.
  int64_t vocab_size() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

/// Returns the tokenizer of a checkpoint folder as transformers 5.24 loads it: tokenizer.json, then
/// the tokens of tokenizer_config.json, special_tokens_map.json and added_tokens.json, then
/// `extra_special_tokens`.
///
/// Throws UserError (bad data) for the errors of Tokenizer::from_file(), if a file gives a token a
/// different id than transformers would, and if split_special_tokens is true. Logs a warning, once
/// per process, for each setting of tokenizer_config.json that is not supported and may change
/// tokens, and for tokens that transformers reads differently.
Tokenizer read_tokenizer(const std::filesystem::path& folder, std::span<const std::string> extra_special_tokens = {});

/// Returns the content of a tokenizer.json. Throws UserError (bad data) if the file cannot be read.
std::string read_tokenizer_json(const std::filesystem::path& tokenizer_json);

/// The result of add_token(): the new content of tokenizer.json and the id of the token.
struct AddTokenResult {
  std::string json;
  int64_t id;
};

/// Adds `token` to the list `added_tokens` of `json`, the content of a tokenizer.json. The token
/// gets the next id, is not special (so that decoding keeps it) and not normalized. Returns `json`
/// unchanged if `token` already encodes to a single token. All other text of `json` is unchanged.
/// `source_name` names the file in messages. Throws UserError (bad data) for the errors of
/// Tokenizer::from_json().
AddTokenResult add_token(const std::string& json, const std::string& token, const std::string& source_name);

}  // namespace vlmtrain::text
