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
  TemplateProcessing(std::vector<int64_t> prefix_ids, std::vector<int64_t> suffix_ids)
      : prefix_ids_(std::move(prefix_ids)), suffix_ids_(std::move(suffix_ids)) {}

  void apply(Encoding& encoding) const override {
    const uint32_t first_start = encoding.starts.empty() ? 0 : encoding.starts.front();
    const uint32_t last_start = encoding.starts.empty() ? 0 : encoding.starts.back();
    encoding.ids.insert(encoding.ids.begin(), prefix_ids_.begin(), prefix_ids_.end());
    encoding.ids.insert(encoding.ids.end(), suffix_ids_.begin(), suffix_ids_.end());
    encoding.starts.insert(encoding.starts.begin(), prefix_ids_.size(), first_start);
    encoding.starts.insert(encoding.starts.end(), suffix_ids_.size(), last_start);
  }

 private:
  std::vector<int64_t> prefix_ids_;
  std::vector<int64_t> suffix_ids_;
};

class PostProcessorSequence : public PostProcessor {
 public:
  explicit PostProcessorSequence(std::vector<std::unique_ptr<PostProcessor>> post_processors)
      : post_processors_(std::move(post_processors)) {}

  void apply(Encoding& encoding) const override {
    for (const auto& post_processor : post_processors_) post_processor->apply(encoding);
  }

 private:
  std::vector<std::unique_ptr<PostProcessor>> post_processors_;
};

std::unique_ptr<PostProcessor> make_byte_level(const JsonNode&) {
  return std::make_unique<ByteLevelTrim>();
}

std::unique_ptr<PostProcessor> make_template(const JsonNode& node) {
  std::vector<int64_t> prefix_ids;
  std::vector<int64_t> suffix_ids;
  size_t num_sequences = 0;
  for (const JsonNode& item : node.get_list("single")) {
    if (item.has("Sequence")) {
      ++num_sequences;
      continue;
    }
    const JsonNode special = item.at("SpecialToken");
    const JsonNode token = node.at("special_tokens").at(special.get_string("id"));
    for (const JsonNode& id : token.get_list("ids"))
      (num_sequences == 0 ? prefix_ids : suffix_ids).push_back(id.integer());
  }
  if (num_sequences != 1)
    throw node.at("single").error("must hold the text once, and holds it {} times", num_sequences);
  return std::make_unique<TemplateProcessing>(std::move(prefix_ids), std::move(suffix_ids));
}

std::unique_ptr<PostProcessor> make_sequence(const JsonNode& node) {
  std::vector<std::unique_ptr<PostProcessor>> post_processors;
  for (const JsonNode& post_processor : node.get_list("processors"))
    post_processors.push_back(make_post_processor(post_processor));
  return std::make_unique<PostProcessorSequence>(std::move(post_processors));
}

constexpr std::array<ComponentFactory<PostProcessor>, 3> kFactories{{
    {"ByteLevel", make_byte_level},
    {"TemplateProcessing", make_template},
    {"Sequence", make_sequence},
}};

}  // namespace

std::unique_ptr<PostProcessor> make_post_processor(const JsonNode& node) {
  return make_component<PostProcessor>(node, kFactories);
}

}  // namespace vlmtrain::text
