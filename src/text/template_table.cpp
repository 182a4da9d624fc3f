#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/resources.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::text {

const io::Resources& resources();  // configs/chat_templates

namespace {

struct BuiltinTemplate {
  std::string_view name;
  std::string_view end_of_turn;  // empty: the template writes none
};

/// By name in alphabetical order.
constexpr std::array kBuiltinTemplates{
    BuiltinTemplate{"chatml", "<|im_end|>"},
    BuiltinTemplate{"gemma3", "<end_of_turn>"},
    BuiltinTemplate{"internvl", "<|im_end|>"},            // OpenGVLab/InternVL3-*-hf
    BuiltinTemplate{"llava_1_5", ""},                     // llava-hf/llava-1.5-*
    BuiltinTemplate{"llava_qwen", "<|im_end|>"},          // LLaVA-NeXT, conversation.py: qwen_1_5
    BuiltinTemplate{"llava_v1", "</s>"},                  // LLaVA, conversation.py: vicuna_v1
    BuiltinTemplate{"mistral_instruct", "</s>"},          // LLaVA-Med 1.5, conversation.py
    BuiltinTemplate{"question_answer", "<|endoftext|>"},  // nanoVLM v0.1, data/datasets.py and collators.py
    BuiltinTemplate{"qwen2_vl", "<|im_end|>"},
    BuiltinTemplate{"smolvlm", "<end_of_utterance>"}};

}  // namespace

std::vector<std::string_view> builtin_template_names() {
  std::vector<std::string_view> names;
  names.reserve(kBuiltinTemplates.size());
  for (const BuiltinTemplate& builtin : kBuiltinTemplates) names.push_back(builtin.name);
  return names;
}

TemplateSource find_builtin_template(std::string_view name) {
  const auto entry = std::ranges::find(kBuiltinTemplates, name, &BuiltinTemplate::name);
  if (entry == kBuiltinTemplates.end()) {
    throw usage_error("There is no chat template \"{}\"; there are {}", name,
                      fmt::join(builtin_template_names(), ", "));
  }
  return {.jinja = std::string(resources().at(std::string(name) + ".jinja")),
          .name = std::string(name),
          .end_of_turn = entry->end_of_turn};
}

}  // namespace vlmtrain::text
