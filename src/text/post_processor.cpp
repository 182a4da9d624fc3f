#include "text/post_processor.h"

#include <array>
#include <utility>

#include "text/component.h"

namespace vlmtrain::text {
namespace {

/// Trims offsets only, which `Encoding::starts` does not want.
class ByteLevelTrim : public PostProcessor {
 public:
  void apply(Encoding&) const override {}
};

class TemplateProcessing : public PostProcessor {
 public:
  TemplateProcessing(std::vector<int64_t> before, std::vector<int64_t> after)
      : before_(std::move(before)), after_(std::move(after)) {}

  void apply(Encoding& encoding) const override {
    const uint32_t first = encoding.starts.empty() ? 0 : encoding.starts.front();
    const uint32_t last = encoding.starts.empty() ? 0 : encoding.starts.back();
    encoding.ids.insert(encoding.ids.begin(), before_.begin(), before_.end());
    encoding.ids.insert(encoding.ids.end(), after_.begin(), after_.end());
    encoding.starts.insert(encoding.starts.begin(), before_.size(), first);
    encoding.starts.insert(encoding.starts.end(), after_.size(), last);
  }

 private:
  std::vector<int64_t> before_;
  std::vector<int64_t> after_;
};

class PostProcessorSequence : public PostProcessor {
 public:
  explicit PostProcessorSequence(std::vector<std::unique_ptr<PostProcessor>> parts) : parts_(std::move(parts)) {}

  void apply(Encoding& encoding) const override {
    for (const auto& part : parts_) part->apply(encoding);
  }

 private:
  std::vector<std::unique_ptr<PostProcessor>> parts_;
};

std::unique_ptr<PostProcessor> make_byte_level(const JsonNode&) {
  return std::make_unique<ByteLevelTrim>();
}

std::unique_ptr<PostProcessor> make_template(const JsonNode& node) {
  std::vector<int64_t> before;
  std::vector<int64_t> after;
  size_t sequences = 0;
  for (const JsonNode& item : node.list_at("single")) {
    if (item.has("Sequence")) {
      ++sequences;
      continue;
    }
    const JsonNode special = item.at("SpecialToken");
    const JsonNode token = node.at("special_tokens").at(special.string_at("id"));
    for (const JsonNode& id : token.list_at("ids")) (sequences == 0 ? before : after).push_back(id.integer());
  }
  if (sequences != 1) throw node.at("single").error("must hold the text once, and holds it {} times", sequences);
  return std::make_unique<TemplateProcessing>(std::move(before), std::move(after));
}

std::unique_ptr<PostProcessor> make_sequence(const JsonNode& node) {
  std::vector<std::unique_ptr<PostProcessor>> parts;
  for (const JsonNode& part : node.list_at("processors")) parts.push_back(make_post_processor(part));
  return std::make_unique<PostProcessorSequence>(std::move(parts));
}

constexpr std::array<ComponentKind<PostProcessor>, 3> kKinds{{
    {"ByteLevel", make_byte_level},
    {"TemplateProcessing", make_template},
    {"Sequence", make_sequence},
}};

}  // namespace

std::unique_ptr<PostProcessor> make_post_processor(const JsonNode& node) {
  return make_component<PostProcessor>(node, kKinds);
}

}  // namespace vlmtrain::text
