#pragma once

#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/json_node.h"
#include "text/tokenizer/normalizer.h"

namespace vlmtrain::text {

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

}  // namespace vlmtrain::text
