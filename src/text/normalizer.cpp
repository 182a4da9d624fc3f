#include "text/normalizer.h"

#include <array>
#include <utility>

#include "text/component.h"
#include "text/nfc.h"
#include "text/pattern.h"

namespace vlmtrain::text {
namespace {

class Nfc : public Normalizer {
 public:
  void apply(AlignedText& text) const override { text = to_nfc(text); }
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}

  void apply(AlignedText& text) const override {
    if (text.bytes.empty()) return;
    text.bytes.insert(0, prefix_);
    text.origin.insert(text.origin.begin(), prefix_.size(), text.origin.front());
  }

 private:
  std::string prefix_;
};

class Replace : public Normalizer {
 public:
  Replace(std::unique_ptr<Pattern> pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void apply(AlignedText& text) const override {
    std::vector<Range> matches;
    pattern_->find_all(text.bytes, matches);
    AlignedText out;
    out.reserve(text.bytes.size() + matches.size() * content_.size());
    size_t done = 0;
    for (const Range& match : matches) {
      out.append(text, done, match.begin);
      out.append(content_, text.origin[match.begin]);
      done = match.end;
    }
    out.append(text, done, text.bytes.size());
    text = std::move(out);
  }

 private:
  std::unique_ptr<Pattern> pattern_;
  std::string content_;
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}

  void apply(AlignedText& text) const override {
    for (const auto& part : parts_) part->apply(text);
  }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

std::unique_ptr<Normalizer> make_nfc(const JsonNode&) {
  return std::make_unique<Nfc>();
}

std::unique_ptr<Normalizer> make_prepend(const JsonNode& node) {
  return std::make_unique<Prepend>(node.string_at("prepend"));
}

std::unique_ptr<Normalizer> make_replace(const JsonNode& node) {
  return std::make_unique<Replace>(make_pattern(node), node.string_at("content"));
}

std::unique_ptr<Normalizer> make_sequence(const JsonNode& node) {
  std::vector<std::unique_ptr<Normalizer>> parts;
  for (const JsonNode& part : node.list_at("normalizers")) parts.push_back(make_normalizer(part));
  return std::make_unique<NormalizerSequence>(std::move(parts));
}

constexpr std::array<ComponentKind<Normalizer>, 4> kKinds{{
    {"NFC", make_nfc},
    {"Prepend", make_prepend},
    {"Replace", make_replace},
    {"Sequence", make_sequence},
}};

}  // namespace

std::unique_ptr<Normalizer> make_normalizer(const JsonNode& node) {
  return make_component<Normalizer>(node, kKinds);
}

}  // namespace vlmtrain::text
