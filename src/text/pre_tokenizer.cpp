#include "text/pre_tokenizer.h"

#include <array>
#include <utility>

#include "text/byte_alphabet.h"
#include "text/component.h"
#include "text/metaspace.h"
#include "text/split.h"

namespace vlmtrain::text {
namespace {

/// GPT-2's own expression, which ByteLevel stands for.
constexpr const char* kGpt2Regex = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

/// Puts `prefix` before the pieces for which `wants(bytes, origin of the first byte)` holds.
template <class Wants>
void prepend_to_pieces(PreTokenized& text, std::string_view prefix, Wants wants) {
  PreTokenized out;
  out.text.reserve(text.text.bytes.size() + text.pieces.size() * prefix.size());
  for (const Range& piece : text.pieces) {
    const size_t begin = out.text.bytes.size();
    const uint32_t origin = text.text.origin[piece.begin];
    const auto bytes = std::string_view(text.text.bytes).substr(piece.begin, piece.end - piece.begin);
    if (wants(bytes, origin)) out.text.append(prefix, origin);
    out.text.append(text.text, piece.begin, piece.end);
    out.pieces.push_back({begin, out.text.bytes.size()});
  }
  text = std::move(out);
}

class ByteLevel : public PreTokenizer {
 public:
  ByteLevel(bool add_prefix_space, std::unique_ptr<Pattern> regex)
      : add_prefix_space_(add_prefix_space), regex_(std::move(regex)) {}

  void apply(PreTokenized& text) const override {
    if (add_prefix_space_) {
      prepend_to_pieces(text, " ", [](std::string_view bytes, uint32_t) { return !bytes.starts_with(' '); });
    }
    if (regex_) split_pieces(text, *regex_, SplitBehavior::kIsolated);
    spell_bytes(text);
  }

 private:
  static void spell_bytes(PreTokenized& text) {
    const auto& alphabet = byte_alphabet();
    AlignedText out;
    out.reserve(text.text.bytes.size() * 2);
    for (Range& piece : text.pieces) {
      const size_t begin = out.bytes.size();
      for (size_t i = piece.begin; i < piece.end; ++i) {
        out.append(alphabet[static_cast<unsigned char>(text.text.bytes[i])], text.text.origin[i]);
      }
      piece = {begin, out.bytes.size()};
    }
    text.text = std::move(out);
  }

  bool add_prefix_space_;
  std::unique_ptr<Pattern> regex_;  // none: pieces stay whole
};

class Split : public PreTokenizer {
 public:
  Split(std::unique_ptr<Pattern> pattern, SplitBehavior behavior, bool invert)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}

  void apply(PreTokenized& text) const override { split_pieces(text, *pattern_, behavior_, invert_); }

 private:
  std::unique_ptr<Pattern> pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

class Metaspace : public PreTokenizer {
 public:
  explicit Metaspace(MetaspaceOptions options)
      : options_(std::move(options)), mark_(literal_pattern(options_.replacement)) {}

  void apply(PreTokenized& text) const override {
    replace_spaces(text);
    prepend_to_pieces(text, options_.replacement, [this](std::string_view bytes, uint32_t origin) {
      return !bytes.starts_with(options_.replacement) && wants_prefix(origin);
    });
    if (options_.split) split_pieces(text, *mark_, SplitBehavior::kMergedWithNext);
  }

 private:
  bool wants_prefix(uint32_t origin) const {
    using Scheme = MetaspaceOptions::PrependScheme;
    return options_.prepend_scheme == Scheme::kAlways || (options_.prepend_scheme == Scheme::kFirst && origin == 0);
  }

  void replace_spaces(PreTokenized& text) const {
    AlignedText out;
    out.reserve(text.text.bytes.size() * 2);
    for (Range& piece : text.pieces) {
      const size_t begin = out.bytes.size();
      for (size_t i = piece.begin; i < piece.end; ++i) {
        const bool is_space = text.text.bytes[i] == ' ';
        out.append(is_space ? std::string_view(options_.replacement) : std::string_view(&text.text.bytes[i], 1),
                   text.text.origin[i]);
      }
      piece = {begin, out.bytes.size()};
    }
    text.text = std::move(out);
  }

  MetaspaceOptions options_;
  std::unique_ptr<Pattern> mark_;
};

class PreTokenizerSequence : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<PreTokenizer>> parts) : parts_(std::move(parts)) {}

  void apply(PreTokenized& text) const override {
    for (const auto& part : parts_) part->apply(text);
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

std::unique_ptr<PreTokenizer> make_byte_level(const JsonNode& node) {
  auto regex = node.boolean_at("use_regex", true) ? regex_pattern(kGpt2Regex, node) : nullptr;
  return std::make_unique<ByteLevel>(node.boolean_at("add_prefix_space", true), std::move(regex));
}

std::unique_ptr<PreTokenizer> make_digits(const JsonNode& node) {
  const bool individual = node.boolean_at("individual_digits", false);
  return std::make_unique<Split>(numeric_pattern(), individual ? SplitBehavior::kIsolated : SplitBehavior::kContiguous,
                                 false);
}

std::unique_ptr<PreTokenizer> make_metaspace(const JsonNode& node) {
  return std::make_unique<Metaspace>(MetaspaceOptions::parse(node));
}

std::unique_ptr<PreTokenizer> make_split(const JsonNode& node) {
  return std::make_unique<Split>(make_pattern(node), parse_split_behavior(node.at("behavior")),
                                 node.boolean_at("invert", false));
}

std::unique_ptr<PreTokenizer> make_sequence(const JsonNode& node) {
  std::vector<std::unique_ptr<PreTokenizer>> parts;
  for (const JsonNode& part : node.list_at("pretokenizers")) parts.push_back(make_pre_tokenizer(part));
  return std::make_unique<PreTokenizerSequence>(std::move(parts));
}

constexpr std::array<ComponentKind<PreTokenizer>, 5> kKinds{{
    {"ByteLevel", make_byte_level},
    {"Digits", make_digits},
    {"Metaspace", make_metaspace},
    {"Split", make_split},
    {"Sequence", make_sequence},
}};

}  // namespace

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const JsonNode& node) {
  return make_component<PreTokenizer>(node, kKinds);
}

}  // namespace vlmtrain::text
