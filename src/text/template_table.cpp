#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/resources.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::text {

const io::Resources& resources();  // configs/chat_templates

namespace {

struct TableEntry {
  std::string_view name;
  std::string_view end_of_turn;  // empty: the template writes none
};

/// By name in alphabetical order.
constexpr std::array kTable{
    TableEntry{"chatml", "<|im_end|>"},
    TableEntry{"gemma3", "<end_of_turn>"},
    TableEntry{"internvl", "<|im_end|>"},            // OpenGVLab/InternVL3-*-hf
    TableEntry{"llava_1_5", ""},                     // llava-hf/llava-1.5-*
    TableEntry{"llava_qwen", "<|im_end|>"},          // LLaVA-NeXT, conversation.py: qwen_1_5
    TableEntry{"llava_v1", "</s>"},                  // LLaVA, conversation.py: vicuna_v1
    TableEntry{"mistral_instruct", "</s>"},          // LLaVA-Med 1.5, conversation.py
    TableEntry{"question_answer", "<|endoftext|>"},  // nanoVLM v0.1, data/datasets.py and collators.py
    TableEntry{"qwen2_vl", "<|im_end|>"},
    TableEntry{"smolvlm", "<end_of_utterance>"}};

}  // namespace

std::vector<std::string_view> template_names() {
  std::vector<std::string_view> names;
  names.reserve(kTable.size());
  for (const TableEntry& entry : kTable) names.push_back(entry.name);
  return names;
}

TemplateSource template_by_name(std::string_view name) {
  const auto found = std::ranges::find(kTable, name, &TableEntry::name);
  if (found == kTable.end()) {
    throw usage_error("There is no chat template \"{}\"; there are {}", name, fmt::join(template_names(), ", "));
  }
  return {.jinja = std::string(resources().at(std::string(name) + ".jinja")),
          .name = std::string(name),
          .end_of_turn = found->end_of_turn};
}

}  // namespace vlmtrain::text
