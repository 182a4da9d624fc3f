#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/json_node.h"

namespace vlmtrain::text {

/// A text that normalizers and pre-tokenizers rewrite, aligned with the original text.
struct AlignedText {
  std::string bytes;
  /// For each byte of `bytes`, the byte offset in the original text from which it comes. Never
  /// decreasing.
  std::vector<uint32_t> original_offsets;

  /// Returns the text of `original_part`, which begins at byte `begin` of the original text.
  static AlignedText from_original_text(std::string_view original_part, uint32_t begin) {
    AlignedText text;
    text.bytes = original_part;
    text.original_offsets.resize(original_part.size());
    for (uint32_t i = 0; i < original_part.size(); ++i) text.original_offsets[i] = begin + i;
    return text;
  }

  void reserve(size_t num_bytes) {
    bytes.reserve(num_bytes);
    original_offsets.reserve(num_bytes);
  }
  /// Appends bytes that all come from byte `original_offset` of the original text.
  void append(std::string_view appended_bytes, uint32_t original_offset) {
    bytes.append(appended_bytes);
    original_offsets.insert(original_offsets.end(), appended_bytes.size(), original_offset);
  }
  /// Appends bytes [begin, end) of `source` with their offsets.
  void append(const AlignedText& source, size_t begin, size_t end) {
    bytes.append(source.bytes, begin, end - begin);
    original_offsets.insert(original_offsets.end(),
                            source.original_offsets.begin() + static_cast<std::ptrdiff_t>(begin),
                            source.original_offsets.begin() + static_cast<std::ptrdiff_t>(end));
  }
};

/// A normalizer of tokenizer.json, which rewrites a text before it is split. Immutable and
/// thread-safe.
class Normalizer {
 public:
  Normalizer() = default;
  Normalizer(const Normalizer&) = delete;
  Normalizer& operator=(const Normalizer&) = delete;
  virtual ~Normalizer() = default;

  /// Normalizes `text` in place. REQUIRES valid UTF-8.
  virtual void normalize(AlignedText& text) const = 0;
};

/// Returns the normalizer that `node` describes: NFC, Prepend, Replace or Sequence. Throws
/// UserError (kBadData) for other types.
std::unique_ptr<Normalizer> make_normalizer(const JsonNode& node);

/// A range of bytes [begin, end) of a text.
struct ByteRange {
  size_t begin;
  size_t end;
};

/// A pattern of tokenizer.json that matches parts of a text. Immutable and thread-safe.
class Pattern {
 public:
  Pattern() = default;
  Pattern(const Pattern&) = delete;
  Pattern& operator=(const Pattern&) = delete;
  virtual ~Pattern() = default;

  /// Appends all matches to `matches` from left to right. No match is empty, and none overlap.
  /// REQUIRES valid UTF-8.
  virtual void find_all_matches(std::string_view text, std::vector<ByteRange>& matches) const = 0;
};

/// Returns a pattern that matches `literal`. REQUIRES that `literal` is not empty.
std::unique_ptr<Pattern> make_literal_pattern(std::string literal);
/// Returns a pattern that matches single numeric characters, see is_numeric().
std::unique_ptr<Pattern> make_numeric_pattern();
/// Returns a pattern that matches a regular expression in PCRE2's syntax, with Unicode classes.
/// Throws UserError (kBadData) about `node` if the expression does not compile. find_all_matches()
/// of the result throws UserError (bad data) if a match exceeds the limits of time and memory.
std::unique_ptr<Pattern> make_regex_pattern(const std::string& expression, const JsonNode& node);

/// Returns the pattern of the key `pattern` of `node`: {"String": …} or {"Regex": …}. Throws
/// UserError (kBadData) for other values.
std::unique_ptr<Pattern> make_pattern(const JsonNode& node);

/// Returns, for each byte, the printable character (in UTF-8) that represents it in byte-level
/// vocabularies. Source: GPT-2's `bytes_to_unicode`. Printable Latin-1 characters represent
/// themselves; the other bytes map to U+0100 and the following characters in ascending order.
const std::array<std::string, 256>& get_byte_alphabet();

/// Returns the bytes that `token` represents in get_byte_alphabet(), or nothing if one of its
/// characters is not in the alphabet.
std::optional<std::string> decode_byte_level_token(std::string_view token);

/// The options of tokenizer.json's Metaspace, which is a pre-tokenizer and a decoder. It represents
/// spaces by a visible character, usually U+2581.
struct MetaspaceOptions {
  /// The pieces that get `replacement` in front: all pieces, the first piece of the text, or none.
  enum class PrependScheme { kAlways, kFirst, kNever };

  std::string replacement;                                ///< the visible character for a space; not empty
  PrependScheme prepend_scheme = PrependScheme::kAlways;  ///< the pieces that get `replacement` in front
  bool split = true;                                      ///< whether to split before each `replacement`

  /// Reads the options. Throws UserError (kBadData) for unknown values.
  static MetaspaceOptions parse(const JsonNode& node);
};

/// A text split into pieces that the model encodes one by one. Bytes between pieces are dropped.
struct PreTokenizedText {
  AlignedText text;
  std::vector<ByteRange> pieces;  ///< ranges of text.bytes, in order, none empty
};

/// A pre-tokenizer of tokenizer.json, which splits and rewrites pieces. Immutable and thread-safe.
class PreTokenizer {
 public:
  PreTokenizer() = default;
  PreTokenizer(const PreTokenizer&) = delete;
  PreTokenizer& operator=(const PreTokenizer&) = delete;
  virtual ~PreTokenizer() = default;

  /// Splits each piece of `text` into smaller pieces, and may rewrite their bytes.
  virtual void pre_tokenize(PreTokenizedText& text) const = 0;
};

/// Returns the pre-tokenizer that `node` describes: ByteLevel, Digits, Metaspace, Split or
/// Sequence. Throws UserError (kBadData) for other types.
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const JsonNode& node);

/// A decoder of tokenizer.json, which converts tokens to text. Immutable and thread-safe.
class Decoder {
 public:
  Decoder() = default;
  Decoder(const Decoder&) = delete;
  Decoder& operator=(const Decoder&) = delete;
  virtual ~Decoder() = default;

  /// Rewrites the list of tokens in place, and may change its length. The decoded text is the
  /// concatenation of the list after the last decoder.
  virtual void decode_tokens(std::vector<std::string>& tokens) const = 0;
};

/// Returns the decoder that `node` describes: ByteFallback, ByteLevel, Fuse, Metaspace, Replace,
/// Strip or Sequence. Throws UserError (kBadData) for other types.
std::unique_ptr<Decoder> make_decoder(const JsonNode& node);

}  // namespace vlmtrain::text
