#include "text/tokenizer/normalizer.h"

#include <array>
#include <utility>

#include "text/component.h"
#include "text/nfc.h"
#include "text/tokenizer/pattern.h"

namespace vlmtrain::text {
namespace {

class NfcNormalizer : public Normalizer {
 public:
  void apply(AlignedText& text) const override { text = to_nfc(text); }
};

class PrependNormalizer : public Normalizer {
 public:
  explicit PrependNormalizer(std::string prefix) : prefix_(std::move(prefix)) {}

  void apply(AlignedText& text) const override {
    if (text.bytes.empty()) return;
    text.bytes.insert(0, prefix_);
    text.original_offsets.insert(text.original_offsets.begin(), prefix_.size(), text.original_offsets.front());
  }

 private:
  std::string prefix_;
};

class ReplaceNormalizer : public Normalizer {
 public:
  ReplaceNormalizer(std::unique_ptr<Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void apply(AlignedText& text) const override {
    std::vector<Range> matches;
    pattern_->find_all(text.bytes, matches);
    AlignedText out;
    out.reserve(text.bytes.size() + matches.size() * content_.size());
    size_t copied_end = 0;
    for (const Range& match : matches) {
      out.append(text, copied_end, match.begin);
      out.append(content_, text.original_offsets[match.begin]);
      copied_end = match.end;
    }
    out.append(text, copied_end, text.bytes.size());
    text = std::move(out);
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  std::string content_;
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> normalizers)
      : normalizers_(std::move(normalizers)) {}

  void apply(AlignedText& text) const override {
    for (const auto& normalizer : normalizers_) normalizer->apply(text);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> normalizers_;
};

std::unique_ptr<Normalizer> make_nfc(const JsonNode&) {
  return std::make_unique<NfcNormalizer>();
}

std::unique_ptr<Normalizer> make_prepend(const JsonNode& node) {
  return std::make_unique<PrependNormalizer>(node.get_string("prepend"));
}

std::unique_ptr<Normalizer> make_replace(const JsonNode& node) {
  return std::make_unique<ReplaceNormalizer>(make_pattern(node), node.get_string("content"));
}

std::unique_ptr<Normalizer> make_sequence(const JsonNode& node) {
  std::vector<std::unique_ptr<Normalizer>> normalizers;
  for (const JsonNode& normalizer : node.get_list("normalizers")) normalizers.push_back(make_normalizer(normalizer));
  return std::make_unique<NormalizerSequence>(std::move(normalizers));
}

constexpr std::array<ComponentFactory<Normalizer>, 4> kFactories{{
    {"NFC", make_nfc},
    {"Prepend", make_prepend},
    {"Replace", make_replace},
    {"Sequence", make_sequence},
}};

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const JsonNode& node) {
  return make_component<Normalizer>(node, kFactories);
}

}  // namespace vlmtrain::text
