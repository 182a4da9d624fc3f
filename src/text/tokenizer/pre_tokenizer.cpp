#include <algorithm>
#include <array>
#include <utility>

#include "text/tokenizer/pipeline.h"
#include "text/unicode/characters.h"

namespace vlmtrain::text {
namespace {

constexpr int kNumByteValues = 256;
constexpr char32_t kFirstSubstituteCodePoint = 0x100;  // code point for the first byte that is not printable
constexpr int kNumSubstituteCodePoints = 68;           // number of bytes that are not printable in Latin-1

/// Returns whether the byte represents itself in GPT-2's bytes_to_unicode().
constexpr bool is_printable_latin1(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

/// Returns the table of get_byte_alphabet().
std::array<std::string, kNumByteValues> make_byte_alphabet() {
  std::array<std::string, kNumByteValues> alphabet;
  char32_t substitute_code_point = kFirstSubstituteCodePoint;
  for (int byte = 0; byte < kNumByteValues; ++byte) {
    append_utf8(alphabet[static_cast<size_t>(byte)],
                is_printable_latin1(byte) ? static_cast<char32_t>(byte) : substitute_code_point++);
  }
  return alphabet;
}

/// Returns the inverse of get_byte_alphabet(): the byte by code point, or -1 if no byte has this
/// character.
std::array<int, kFirstSubstituteCodePoint + kNumSubstituteCodePoints> make_inverse_byte_alphabet() {
  std::array<int, kFirstSubstituteCodePoint + kNumSubstituteCodePoints> inverse_alphabet{};
  inverse_alphabet.fill(-1);
  for (int byte = 0; byte < kNumByteValues; ++byte) {
    inverse_alphabet[read_utf8(get_byte_alphabet()[static_cast<size_t>(byte)], 0).code_point] = byte;
  }
  return inverse_alphabet;
}

using PrependScheme = MetaspaceOptions::PrependScheme;

/// Parses `prepend_scheme`. Throws UserError (bad data) for unknown names.
PrependScheme parse_prepend_scheme(const JsonNode& node) {
  const std::string name = node.string();
  if (name == "always") return PrependScheme::kAlways;
  if (name == "first") return PrependScheme::kFirst;
  if (name == "never") return PrependScheme::kNever;
  throw node.error("is \"{}\", which is not supported; supported are always, first, never", name);
}

/// The treatment of matches when a text is split, with the names of tokenizer.json.
enum class SplitBehavior {
  kRemoved,             ///< the match is dropped
  kIsolated,            ///< the match is a piece
  kMergedWithPrevious,  ///< the match ends the piece before it
  kMergedWithNext,      ///< the match begins the piece after it
  kContiguous,          ///< adjacent matches are one piece
};

/// A match, or the text between two matches.
struct TextSegment {
  ByteRange range;
  bool is_match;
};

/// Splits [0, size) into matches and the text between them. With `invert`, the text between matches
/// counts as a match, and matches do not.
void split_at_matches(const std::vector<ByteRange>& matches, size_t size, bool invert,
                      std::vector<TextSegment>& segments) {
  size_t previous_match_end = 0;
  for (const ByteRange& match : matches) {
    if (match.begin > previous_match_end) segments.push_back({{previous_match_end, match.begin}, invert});
    segments.push_back({match, !invert});
    previous_match_end = match.end;
  }
  if (size > previous_match_end) segments.push_back({{previous_match_end, size}, invert});
}

/// Removes the matches.
void remove_matches(std::vector<TextSegment>& segments) {
  std::erase_if(segments, [](const TextSegment& segment) { return segment.is_match; });
}

/// Merges each segment with the one before it if should_merge(is_previous_segment_match, is_match).
template <class Predicate>
void merge_segments(std::vector<TextSegment>& segments, Predicate should_merge) {
  std::vector<TextSegment> merged_segments;
  bool is_previous_segment_match = false;
  for (const TextSegment& segment : segments) {
    if (!merged_segments.empty() && should_merge(is_previous_segment_match, segment.is_match)) {
      merged_segments.back().range.end = segment.range.end;
    } else {
      merged_segments.push_back(segment);
    }
    is_previous_segment_match = segment.is_match;
  }
  segments = std::move(merged_segments);
}

/// Merges each match with the text after it. Of several adjacent matches, only the last one is
/// merged.
void merge_matches_with_next(std::vector<TextSegment>& segments) {
  std::vector<TextSegment> merged_segments;
  for (size_t i = 0; i < segments.size(); ++i) {
    TextSegment segment = segments[i];
    const bool is_next_segment_gap = i + 1 < segments.size() && !segments[i + 1].is_match;
    if (segment.is_match && is_next_segment_gap) segment.range.end = segments[++i].range.end;
    merged_segments.push_back(segment);
  }
  segments = std::move(merged_segments);
}

/// Merges or removes segments according to `behavior`.
void apply_split_behavior(std::vector<TextSegment>& segments, SplitBehavior behavior) {
  switch (behavior) {
    case SplitBehavior::kRemoved:
      remove_matches(segments);
      break;
    case SplitBehavior::kIsolated:
      break;
    case SplitBehavior::kMergedWithPrevious:
      merge_segments(segments, [](bool is_previous_segment_match, bool is_match) {
        return is_match && !is_previous_segment_match;
      });
      break;
    case SplitBehavior::kMergedWithNext:
      merge_matches_with_next(segments);
      break;
    case SplitBehavior::kContiguous:
      merge_segments(segments, [](bool is_previous_segment_match, bool is_match) {
        return is_match == is_previous_segment_match;
      });
      break;
  }
}

/// Parses `behavior` of Split. Throws UserError (bad data) for unknown names.
SplitBehavior parse_split_behavior(const JsonNode& node) {
  static constexpr std::array<std::pair<std::string_view, SplitBehavior>, 5> kSplitBehaviorNames{{
      {"Removed", SplitBehavior::kRemoved},
      {"Isolated", SplitBehavior::kIsolated},
      {"MergedWithPrevious", SplitBehavior::kMergedWithPrevious},
      {"MergedWithNext", SplitBehavior::kMergedWithNext},
      {"Contiguous", SplitBehavior::kContiguous},
  }};
  const std::string name = node.string();
  for (const auto& [behavior_name, behavior] : kSplitBehaviorNames) {
    if (name == behavior_name) return behavior;
  }
  throw node.error(
      "is \"{}\", which is not supported; supported are Removed, Isolated, MergedWithPrevious, MergedWithNext, "
      "Contiguous",
      name);
}

/// Splits each piece of `pre_tokenized` at the matches of `pattern`; with `invert`, at the text
/// between matches.
void split_pieces(PreTokenizedText& pre_tokenized, const Pattern& pattern, SplitBehavior behavior,
                  bool invert = false) {
  std::vector<ByteRange> pieces;
  std::vector<ByteRange> matches;
  std::vector<TextSegment> segments;
  for (const ByteRange& piece : pre_tokenized.pieces) {
    matches.clear();
    segments.clear();
    const size_t size = piece.end - piece.begin;
    pattern.find_all_matches(std::string_view(pre_tokenized.text.bytes).substr(piece.begin, size), matches);
    split_at_matches(matches, size, invert, segments);
    apply_split_behavior(segments, behavior);
    for (const TextSegment& segment : segments) {
      pieces.push_back({piece.begin + segment.range.begin, piece.begin + segment.range.end});
    }
  }
  pre_tokenized.pieces = std::move(pieces);
}

/// The regular expression of GPT-2's tokenizer, which ByteLevel applies if use_regex is set.
constexpr const char* kGpt2Regex = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Inserts `prefix` before each piece for which needs_prefix(bytes, original_offset) returns true.
/// `original_offset` is the offset of the first byte in the original text.
template <class Predicate>
void prepend_to_pieces(PreTokenizedText& pre_tokenized, std::string_view prefix, Predicate needs_prefix) {
  PreTokenizedText out;
  out.text.reserve(pre_tokenized.text.bytes.size() + pre_tokenized.pieces.size() * prefix.size());
  for (const ByteRange& piece : pre_tokenized.pieces) {
    const size_t begin = out.text.bytes.size();
    const uint32_t original_offset = pre_tokenized.text.original_offsets[piece.begin];
    const auto bytes = std::string_view(pre_tokenized.text.bytes).substr(piece.begin, piece.end - piece.begin);
    if (needs_prefix(bytes, original_offset)) out.text.append(prefix, original_offset);
    out.text.append(pre_tokenized.text, piece.begin, piece.end);
    out.pieces.push_back({begin, out.text.bytes.size()});
  }
  pre_tokenized = std::move(out);
}

/// The pre-tokenizer ByteLevel, which splits with the regular expression of GPT-2 and represents
/// bytes by printable characters.
class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, std::unique_ptr<Pattern> regex_pattern)
      : add_prefix_space_(add_prefix_space), regex_pattern_(std::move(regex_pattern)) {}

  void pre_tokenize(PreTokenizedText& pre_tokenized) const override {
    if (add_prefix_space_) {
      prepend_to_pieces(pre_tokenized, " ", [](std::string_view bytes, uint32_t) { return !bytes.starts_with(' '); });
    }
    if (regex_pattern_) split_pieces(pre_tokenized, *regex_pattern_, SplitBehavior::kIsolated);
    replace_bytes(pre_tokenized);
  }

 private:
  static void replace_bytes(PreTokenizedText& pre_tokenized) {
    const auto& alphabet = get_byte_alphabet();
    AlignedText out;
    out.reserve(pre_tokenized.text.bytes.size() * 2);
    for (ByteRange& piece : pre_tokenized.pieces) {
      const size_t begin = out.bytes.size();
      for (size_t i = piece.begin; i < piece.end; ++i) {
        out.append(alphabet[static_cast<unsigned char>(pre_tokenized.text.bytes[i])],
                   pre_tokenized.text.original_offsets[i]);
      }
      piece = {begin, out.bytes.size()};
    }
    pre_tokenized.text = std::move(out);
  }

  bool add_prefix_space_;
  std::unique_ptr<Pattern> regex_pattern_;  // null: pieces are not split
};

/// The pre-tokenizer Split, which splits at the matches of a pattern.
class SplitPreTokenizer : public PreTokenizer {
 public:
  SplitPreTokenizer(std::unique_ptr<Pattern> pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void pre_tokenize(PreTokenizedText& pre_tokenized) const override {
    split_pieces(pre_tokenized, *pattern_, behavior_, invert_);
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

/// The pre-tokenizer Metaspace, which replaces spaces with a visible character and splits before
/// it.
class MetaspacePreTokenizer : public PreTokenizer {
 public:
  explicit MetaspacePreTokenizer(MetaspaceOptions options)
      : options_(std::move(options)), replacement_pattern_(make_literal_pattern(options_.replacement)) {}

  void pre_tokenize(PreTokenizedText& pre_tokenized) const override {
    replace_spaces(pre_tokenized);
    prepend_to_pieces(pre_tokenized, options_.replacement, [this](std::string_view bytes, uint32_t original_offset) {
      return !bytes.starts_with(options_.replacement) && needs_prefix(original_offset);
    });
    if (options_.split) split_pieces(pre_tokenized, *replacement_pattern_, SplitBehavior::kMergedWithNext);
  }

 private:
  bool needs_prefix(uint32_t original_offset) const {
    return options_.prepend_scheme == PrependScheme::kAlways ||
           (options_.prepend_scheme == PrependScheme::kFirst && original_offset == 0);
  }

  void replace_spaces(PreTokenizedText& pre_tokenized) const {
    AlignedText out;
    out.reserve(pre_tokenized.text.bytes.size() * 2);
    for (ByteRange& piece : pre_tokenized.pieces) {
      const size_t begin = out.bytes.size();
      for (size_t i = piece.begin; i < piece.end; ++i) {
        const bool is_space = pre_tokenized.text.bytes[i] == ' ';
        out.append(
            is_space ? std::string_view(options_.replacement) : std::string_view(&pre_tokenized.text.bytes[i], 1),
            pre_tokenized.text.original_offsets[i]);
      }
      piece = {begin, out.bytes.size()};
    }
    pre_tokenized.text = std::move(out);
  }

  MetaspaceOptions options_;
  std::unique_ptr<Pattern> replacement_pattern_;
};

/// The pre-tokenizer Sequence, which applies several pre-tokenizers in order.
class PreTokenizerSequence : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<PreTokenizer>> pre_tokenizers)
      : pre_tokenizers_(std::move(pre_tokenizers)) {}

  void pre_tokenize(PreTokenizedText& pre_tokenized) const override {
    for (const auto& pre_tokenizer : pre_tokenizers_) pre_tokenizer->pre_tokenize(pre_tokenized);
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> pre_tokenizers_;
};

std::unique_ptr<PreTokenizer> make_byte_level_pre_tokenizer(const JsonNode& node) {
  auto regex_pattern = node.get_bool("use_regex", true) ? make_regex_pattern(kGpt2Regex, node) : nullptr;
  return std::make_unique<ByteLevelPreTokenizer>(node.get_bool("add_prefix_space", true), std::move(regex_pattern));
}

std::unique_ptr<PreTokenizer> make_digits_pre_tokenizer(const JsonNode& node) {
  const bool splits_each_digit = node.get_bool("individual_digits", false);
  return std::make_unique<SplitPreTokenizer>(
      make_numeric_pattern(), splits_each_digit ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, false);
}

std::unique_ptr<PreTokenizer> make_metaspace_pre_tokenizer(const JsonNode& node) {
  return std::make_unique<MetaspacePreTokenizer>(MetaspaceOptions::parse(node));
}

std::unique_ptr<PreTokenizer> make_split_pre_tokenizer(const JsonNode& node) {
  return std::make_unique<SplitPreTokenizer>(make_pattern(node), parse_split_behavior(node.at("behavior")),
                                             node.get_bool("invert", false));
}

std::unique_ptr<PreTokenizer> make_pre_tokenizer_sequence(const JsonNode& node) {
  std::vector<std::unique_ptr<PreTokenizer>> pre_tokenizers;
  for (const JsonNode& pre_tokenizer : node.get_list("pretokenizers"))
    pre_tokenizers.push_back(make_pre_tokenizer(pre_tokenizer));
  return std::make_unique<PreTokenizerSequence>(std::move(pre_tokenizers));
}

constexpr std::array<ComponentFactory<PreTokenizer>, 5> kPreTokenizerFactories{{
    {"ByteLevel", make_byte_level_pre_tokenizer},
    {"Digits", make_digits_pre_tokenizer},
    {"Metaspace", make_metaspace_pre_tokenizer},
    {"Split", make_split_pre_tokenizer},
    {"Sequence", make_pre_tokenizer_sequence},
}};

}  // namespace

const std::array<std::string, 256>& get_byte_alphabet() {
  static const std::array<std::string, kNumByteValues> alphabet = make_byte_alphabet();
  return alphabet;
}

std::optional<std::string> decode_byte_level_token(std::string_view token) {
  static const auto inverse_alphabet = make_inverse_byte_alphabet();
  std::string bytes;
  for (size_t pos = 0; pos < token.size();) {
    const Utf8Character utf8_character = read_utf8(token, pos);
    if (utf8_character.code_point >= inverse_alphabet.size() || inverse_alphabet[utf8_character.code_point] < 0)
      return std::nullopt;
    bytes.push_back(static_cast<char>(inverse_alphabet[utf8_character.code_point]));
    pos += utf8_character.num_bytes;
  }
  return bytes;
}

MetaspaceOptions MetaspaceOptions::parse(const JsonNode& node) {
  MetaspaceOptions options;
  options.replacement = node.get_string("replacement");
  if (options.replacement.empty()) throw node.error("must have a non-empty replacement");
  if (node.has_key("prepend_scheme")) options.prepend_scheme = parse_prepend_scheme(node.at("prepend_scheme"));
  // Old files have add_prefix_space instead of prepend_scheme.
  if (!node.get_bool("add_prefix_space", true)) options.prepend_scheme = PrependScheme::kNever;
  options.split = node.get_bool("split", true);
  return options;
}

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const JsonNode& node) {
  return make_component<PreTokenizer>(node, kPreTokenizerFactories);
}

}  // namespace vlmtrain::text
