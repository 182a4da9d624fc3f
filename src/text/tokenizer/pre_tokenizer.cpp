#include "text/tokenizer/pre_tokenizer.h"

#include <array>
#include <utility>

#include "text/byte_alphabet.h"
#include "text/component.h"
#include "text/metaspace.h"
#include "text/split.h"

namespace vlmtrain::text {
namespace {

/// GPT-2's own expression, which ByteLevelPreTokenizer stands for.
constexpr const char* kGpt2Regex = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Puts `prefix` before the pieces for which `wants(bytes, origin of the first byte)` holds.
template <class Predicate>
void prepend_to_pieces(PreTokenized& text, std::string_view prefix, Predicate needs_prefix) {
  PreTokenized out;
  out.text.reserve(text.text.bytes.size() + text.pieces.size() * prefix.size());
  for (const Range& piece : text.pieces) {
    const size_t begin = out.text.bytes.size();
    const uint32_t original_offset = text.text.original_offsets[piece.begin];
    const auto bytes = std::string_view(text.text.bytes).substr(piece.begin, piece.end - piece.begin);
    if (needs_prefix(bytes, original_offset)) out.text.append(prefix, original_offset);
    out.text.append(text.text, piece.begin, piece.end);
    out.pieces.push_back({begin, out.text.bytes.size()});
  }
  text = std::move(out);
}

class ByteLevelPreTokenizer : public PreTokenizer {
 public:
  ByteLevelPreTokenizer(bool add_prefix_space, std::unique_ptr<Pattern> regex)
      : add_prefix_space_(add_prefix_space), regex_(std::move(regex)) {}

  void apply(PreTokenized& text) const override {
    if (add_prefix_space_) {
      prepend_to_pieces(text, " ", [](std::string_view bytes, uint32_t) { return !bytes.starts_with(' '); });
    }
    if (regex_) split_pieces(text, *regex_, SplitBehavior::kIsolated);
    encode_bytes(text);
  }

 private:
  static void encode_bytes(PreTokenized& text) {
    const auto& alphabet = byte_alphabet();
    AlignedText out;
    out.reserve(text.text.bytes.size() * 2);
    for (Range& piece : text.pieces) {
      const size_t begin = out.bytes.size();
      for (size_t i = piece.begin; i < piece.end; ++i) {
        out.append(alphabet[static_cast<unsigned char>(text.text.bytes[i])], text.text.original_offsets[i]);
      }
      piece = {begin, out.bytes.size()};
    }
    text.text = std::move(out);
  }

  bool add_prefix_space_;
  std::unique_ptr<Pattern> regex_;  // none: pieces stay whole
};

class SplitPreTokenizer : public PreTokenizer {
 public:
  SplitPreTokenizer(std::unique_ptr<Pattern> pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void apply(PreTokenized& text) const override { split_pieces(text, *pattern_, behavior_, invert_); }

 private:
  std::unique_ptr<Pattern> pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class MetaspacePreTokenizer : public PreTokenizer {
 public:
  explicit MetaspacePreTokenizer(MetaspaceOptions options)
      : options_(std::move(options)), replacement_pattern_(make_literal_pattern(options_.replacement)) {}

  void apply(PreTokenized& text) const override {
    replace_spaces(text);
    prepend_to_pieces(text, options_.replacement, [this](std::string_view bytes, uint32_t original_offset) {
      return !bytes.starts_with(options_.replacement) && needs_prefix(original_offset);
    });
    if (options_.split) split_pieces(text, *replacement_pattern_, SplitBehavior::kMergedWithNext);
  }

 private:
  bool needs_prefix(uint32_t original_offset) const {
    using Scheme = MetaspaceOptions::PrependScheme;
    return options_.prepend_scheme == Scheme::kAlways ||
           (options_.prepend_scheme == Scheme::kFirst && original_offset == 0);
  }

  void replace_spaces(PreTokenized& text) const {
    AlignedText out;
    out.reserve(text.text.bytes.size() * 2);
    for (Range& piece : text.pieces) {
      const size_t begin = out.bytes.size();
      for (size_t i = piece.begin; i < piece.end; ++i) {
        const bool is_space = text.text.bytes[i] == ' ';
        out.append(is_space ? std::string_view(options_.replacement) : std::string_view(&text.text.bytes[i], 1),
                   text.text.original_offsets[i]);
      }
      piece = {begin, out.bytes.size()};
    }
    text.text = std::move(out);
  }

  MetaspaceOptions options_;
  std::unique_ptr<Pattern> replacement_pattern_;
};

class PreTokenizerSequence : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<PreTokenizer>> pre_tokenizers)
      : pre_tokenizers_(std::move(pre_tokenizers)) {}

  void apply(PreTokenized& text) const override {
    for (const auto& pre_tokenizer : pre_tokenizers_) pre_tokenizer->apply(text);
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> pre_tokenizers_;
};

std::unique_ptr<PreTokenizer> make_byte_level(const JsonNode& node) {
  auto regex = node.get_bool("use_regex", true) ? make_regex_pattern(kGpt2Regex, node) : nullptr;
  return std::make_unique<ByteLevelPreTokenizer>(node.get_bool("add_prefix_space", true), std::move(regex));
}

std::unique_ptr<PreTokenizer> make_digits(const JsonNode& node) {
  const bool splits_each_digit = node.get_bool("individual_digits", false);
  return std::make_unique<SplitPreTokenizer>(
      make_numeric_pattern(), splits_each_digit ? SplitBehavior::kIsolated : SplitBehavior::kContiguous, false);
}

std::unique_ptr<PreTokenizer> make_metaspace(const JsonNode& node) {
  return std::make_unique<MetaspacePreTokenizer>(MetaspaceOptions::parse(node));
}

std::unique_ptr<PreTokenizer> make_split(const JsonNode& node) {
  return std::make_unique<SplitPreTokenizer>(make_pattern(node), parse_split_behavior(node.at("behavior")),
                                             node.get_bool("invert", false));
}

std::unique_ptr<PreTokenizer> make_sequence(const JsonNode& node) {
  std::vector<std::unique_ptr<PreTokenizer>> pre_tokenizers;
  for (const JsonNode& pre_tokenizer : node.get_list("pretokenizers"))
    pre_tokenizers.push_back(make_pre_tokenizer(pre_tokenizer));
  return std::make_unique<PreTokenizerSequence>(std::move(pre_tokenizers));
}

constexpr std::array<ComponentFactory<PreTokenizer>, 5> kFactories{{
    {"ByteLevel", make_byte_level},
    {"Digits", make_digits},
    {"Metaspace", make_metaspace},
    {"Split", make_split},
    {"Sequence", make_sequence},
}};

}  // namespace

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const JsonNode& node) {
  return make_component<PreTokenizer>(node, kFactories);
}

}  // namespace vlmtrain::text
