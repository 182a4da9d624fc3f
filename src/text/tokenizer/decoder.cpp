#include <array>
#include <charconv>
#include <optional>
#include <utility>

#include "text/tokenizer/pipeline.h"
#include "text/unicode/characters.h"

namespace vlmtrain::text {
namespace {

/// Returns the concatenation of `tokens`.
std::string concatenate_tokens(const std::vector<std::string>& tokens) {
  std::string text;
  for (const std::string& token : tokens) text += token;
  return text;
}

/// Returns `text` with `content` in place of each match of `pattern`.
std::string replace_all(const std::string& text, const Pattern& pattern, std::string_view content) {
  std::vector<ByteRange> matches;
  pattern.find_all_matches(text, matches);
  std::string out;
  size_t copied_end = 0;
  for (const ByteRange& match : matches) {
    out.append(text, copied_end, match.begin - copied_end).append(content);
    copied_end = match.end;
  }
  return out.append(text, copied_end);
}

/// The decoder ByteLevel, which converts byte-level tokens to UTF-8.
class ByteLevelDecoder : public Decoder {
 public:
  void decode_tokens(std::vector<std::string>& tokens) const override {
    std::string bytes;
    for (const std::string& token : tokens) bytes += decode_byte_level_token(token).value_or(token);
    tokens = {replace_invalid_utf8(bytes)};
  }
};

/// The decoder ByteFallback, which joins adjacent tokens such as "<0xE2>" to one text. Bytes that
/// are not UTF-8 become one U+FFFD each.
class ByteFallbackDecoder : public Decoder {
 public:
  void decode_tokens(std::vector<std::string>& tokens) const override {
    std::vector<std::string> out;
    std::string bytes;
    for (std::string& token : tokens) {
      if (const auto byte = parse_byte_token(token)) {
        bytes.push_back(*byte);
      } else {
        flush_bytes(bytes, out);
        out.push_back(std::move(token));
      }
    }
    flush_bytes(bytes, out);
    tokens = std::move(out);
  }

 private:
  /// Returns the byte of a token such as "<0xE2>", or nothing for other tokens.
  static std::optional<char> parse_byte_token(std::string_view token) {
    if (token.size() != 6 || !token.starts_with("<0x") || !token.ends_with('>')) return std::nullopt;
    unsigned value = 0;
    const auto [end, error_code] = std::from_chars(token.data() + 3, token.data() + 5, value, 16);
    if (error_code != std::errc() || end != token.data() + 5) return std::nullopt;
    return static_cast<char>(value);
  }

  /// Appends `bytes` to `out` as text, and clears them.
  static void flush_bytes(std::string& bytes, std::vector<std::string>& out) {
    if (bytes.empty()) return;
    if (find_invalid_utf8(bytes)) {
      out.insert(out.end(), bytes.size(), "\xEF\xBF\xBD");  // U+FFFD in UTF-8
    } else {
      out.push_back(bytes);
    }
    bytes.clear();
  }
};

/// The decoder Fuse, which joins all tokens to one.
class FuseDecoder : public Decoder {
 public:
  void decode_tokens(std::vector<std::string>& tokens) const override { tokens = {concatenate_tokens(tokens)}; }
};

/// The decoder Replace, which replaces the matches of a pattern in each token.
class ReplaceDecoder : public Decoder {
 public:
  ReplaceDecoder(std::unique_ptr<Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void decode_tokens(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) token = replace_all(token, *pattern_, content_);
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  std::string content_;
};

/// The decoder Strip, which removes up to `start` copies of a string from the beginning of each
/// token and up to `stop` copies from its end.
class StripDecoder : public Decoder {
 public:
  StripDecoder(std::string content, int64_t start, int64_t stop)
      : content_(std::move(content)), max_leading_copies_(start), max_trailing_copies_(stop) {}

  void decode_tokens(std::vector<std::string>& tokens) const override {
    for (std::string& token : tokens) {
      std::string_view stripped_token = token;
      for (int64_t i = 0; i < max_leading_copies_ && stripped_token.starts_with(content_); ++i)
        stripped_token.remove_prefix(content_.size());
      for (int64_t i = 0; i < max_trailing_copies_ && stripped_token.ends_with(content_); ++i)
        stripped_token.remove_suffix(content_.size());
      token = std::string(stripped_token);
    }
  }

 private:
  std::string content_;
  int64_t max_leading_copies_;
  int64_t max_trailing_copies_;
};

/// The decoder Metaspace, which replaces the visible space character with spaces.
class MetaspaceDecoder : public Decoder {
 public:
  explicit MetaspaceDecoder(const MetaspaceOptions& options)
      : replacement_pattern_(make_literal_pattern(options.replacement)),
        strips_first_token_(options.prepend_scheme != MetaspaceOptions::PrependScheme::kNever) {}

  void decode_tokens(std::vector<std::string>& tokens) const override {
    for (size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = replace_all(tokens[i], *replacement_pattern_, i == 0 && strips_first_token_ ? "" : " ");
    }
  }

 private:
  std::unique_ptr<Pattern> replacement_pattern_;
  bool strips_first_token_;  // whether encoding prepended `replacement` to the first token
};

/// The decoder Sequence, which applies several decoders in order.
class DecoderSequence : public Decoder {
 public:
  explicit DecoderSequence(std::vector<std::unique_ptr<Decoder>> decoders) : decoders_(std::move(decoders)) {}

  void decode_tokens(std::vector<std::string>& tokens) const override {
    for (const auto& decoder : decoders_) decoder->decode_tokens(tokens);
  }

 private:
  std::vector<std::unique_ptr<Decoder>> decoders_;
};

template <class DecoderType>
std::unique_ptr<Decoder> make_decoder_without_options(const JsonNode&) {
  return std::make_unique<DecoderType>();
}

std::unique_ptr<Decoder> make_metaspace_decoder(const JsonNode& node) {
  return std::make_unique<MetaspaceDecoder>(MetaspaceOptions::parse(node));
}

std::unique_ptr<Decoder> make_replace_decoder(const JsonNode& node) {
  return std::make_unique<ReplaceDecoder>(make_pattern(node), node.get_string("content"));
}

std::unique_ptr<Decoder> make_strip_decoder(const JsonNode& node) {
  std::string content = node.get_string("content");
  if (content.empty()) throw node.at("content").error("must not be empty");
  return std::make_unique<StripDecoder>(std::move(content), node.at("start").integer(), node.at("stop").integer());
}

std::unique_ptr<Decoder> make_decoder_sequence(const JsonNode& node) {
  std::vector<std::unique_ptr<Decoder>> decoders;
  for (const JsonNode& decoder : node.get_list("decoders")) decoders.push_back(make_decoder(decoder));
  return std::make_unique<DecoderSequence>(std::move(decoders));
}

constexpr std::array<ComponentFactory<Decoder>, 7> kDecoderFactories{{
    {"ByteFallback", make_decoder_without_options<ByteFallbackDecoder>},
    {"ByteLevel", make_decoder_without_options<ByteLevelDecoder>},
    {"Fuse", make_decoder_without_options<FuseDecoder>},
    {"Metaspace", make_metaspace_decoder},
    {"Replace", make_replace_decoder},
    {"Strip", make_strip_decoder},
    {"Sequence", make_decoder_sequence},
}};

}  // namespace

std::unique_ptr<Decoder> make_decoder(const JsonNode& node) {
  return make_component<Decoder>(node, kDecoderFactories);
}

}  // namespace vlmtrain::text
