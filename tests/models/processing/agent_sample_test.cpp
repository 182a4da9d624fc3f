#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <vector>

#include "models/checkpoint_copy.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/models/checkpoint_contents.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {
namespace {

using io::Role;
using testing::HasSubstr;

/// A template with tools, reasoning and images, as Qwen3-VL's.
constexpr const char* kAgentTemplate =
    "{% if tools %}<|im_start|>system\n{{ tools | tojson }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}\n"
    "{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content or [] %}"
    "{% if part.type == 'image' %}<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endif %}{% for call in m.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>"
    "{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

class AgentSampleTest : public testing::Test {
 protected:
  AgentSampleTest() {
    for (const char* name : {"chat_template.json", "chat_template.jinja"}) std::filesystem::remove(copy_.path() / name);
    io::write_file(copy_.path() / "chat_template.jinja", kAgentTemplate);
    record_.id = "agent";
    record_.images = copy_.origin().records().at(image_record_index()).images;
    record_.images.resize(1);
    record_.template_variables = {{"tools", R"([{"type": "function", "function": {"name": "zoom"}}])"}};
    record_.turns = {
        {Role::kUser, "<image>\nWhat?"},
        {.role = Role::kAssistant,
         .text = "",
         .fields = {{"tool_calls", R"([{"type": "function", "function": {"name": "zoom", "arguments": {"x": 1}}}])"},
                    {"reasoning_content", R"("Small.")"}},
         .has_content = false},
        {Role::kTool, "a cat"},
        {Role::kAssistant, "A cat."}};
  }

  size_t image_record_index() const {
    const auto records = copy_.origin().records();
    for (size_t i = 0; i < records.size(); ++i) {
      if (!records[i].images.empty()) return i;
    }
    return 0;
  }

  std::string get_learned_text(data::TrainedAnswers train_on = data::TrainedAnswers::kAll) const {
    ProcessorSettings settings = copy_.origin().processor_settings();
    settings.train_on = train_on;
    const auto processor = load_processor(copy_.path(), settings);
    const data::Sample sample = processor->process_headers(record_, 0);
    std::vector<int64_t> ids;
    for (size_t i = 0; i < sample.token_ids.size(); ++i) {
      if (sample.label_mask[i] != 0) ids.push_back(sample.token_ids[i]);
    }
    return processor->tokenizer().decode(ids, /*skip_special_tokens=*/false);
  }

  const CheckpointCopy copy_{"qwen3_vl_images"};
  io::Record record_;
};

constexpr const char* kCall =
    "<think>\nSmall.\n</think>\n\n<tool_call>\n{\"name\": \"zoom\", \"arguments\": {\"x\": 1}}\n</tool_call><|im_end|>";

TEST_F(AgentSampleTest, LearnsCallsAndReasoningButNoOutputsOfTools) {
  EXPECT_EQ(get_learned_text(), std::string(kCall) + "A cat.<|im_end|>");
}

TEST_F(AgentSampleTest, AnswersCanBeExcluded) {
  EXPECT_EQ(get_learned_text(data::TrainedAnswers::kLast), "A cat.<|im_end|>");
  record_.turns[3].loss_weight = 0;
  EXPECT_EQ(get_learned_text(), kCall);
  EXPECT_EQ(get_learned_text(data::TrainedAnswers::kLast), "");
}

TEST_F(AgentSampleTest, LabelsHaveTheWeightsOfTheirAnswers) {
  const auto processor = load_processor(copy_.path(), copy_.origin().processor_settings());
  EXPECT_TRUE(processor->process_headers(record_, 0).label_weights.empty());
  record_.turns[1].loss_weight = 0.25;
  const data::Sample sample = processor->process_headers(record_, 0);
  ASSERT_EQ(std::ssize(sample.label_weights), sample.tokens());
  std::map<float, std::vector<int64_t>> ids_by_weight;
  for (size_t i = 0; i < sample.token_ids.size(); ++i) {
    EXPECT_EQ(sample.label_weights[i] > 0, sample.label_mask[i] != 0) << i;
    if (sample.label_mask[i] != 0) ids_by_weight[sample.label_weights[i]].push_back(sample.token_ids[i]);
  }
  ASSERT_EQ(ids_by_weight.size(), 2U);
  EXPECT_EQ(processor->tokenizer().decode(ids_by_weight[0.25F], /*skip_special_tokens=*/false), kCall);
  EXPECT_EQ(processor->tokenizer().decode(ids_by_weight[1.0F], /*skip_special_tokens=*/false), "A cat.<|im_end|>");
  EXPECT_DOUBLE_EQ(sample.label_weight(), 0.25 * static_cast<double>(ids_by_weight[0.25F].size()) +
                                              static_cast<double>(ids_by_weight[1.0F].size()));
  EXPECT_TRUE(data::get_sample_shape(sample).has_label_weights);
  EXPECT_TRUE(processor->process_prompt_headers(record_, 0).label_weights.empty());
}

TEST_F(AgentSampleTest, PromptsEndBeforeTheLastAnswer) {
  const auto processor = load_processor(copy_.path(), copy_.origin().processor_settings());
  EXPECT_THAT(processor->render(record_, /*as_prompt=*/true).text,
              testing::EndsWith("a cat<|im_end|>\n<|im_start|>assistant\n"));
  EXPECT_THAT(processor->render(record_, /*as_prompt=*/true).text, HasSubstr(R"("name": "zoom")"));
}

TEST_F(AgentSampleTest, ErrorsNameSampleAndTurn) {
  io::write_file(
      copy_.path() / "chat_template.jinja",
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content is string %}{{ m.content }}"
      "{% else %}{% for part in m.content or [] %}{{ part.text or '<|vision_start|><|image_pad|><|vision_end|>' }}"
      "{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}");
  const auto processor = load_processor(copy_.path(), copy_.origin().processor_settings());
  try {
    processor->process_headers(record_, 0);
    FAIL() << "no error";
  } catch (const data::SampleError& error) {
    EXPECT_THAT(error.what(), HasSubstr("sample agent: turn 2: the chat template omits the call of the tool zoom"));
  }
}

}  // namespace
}  // namespace vlmtrain::models
