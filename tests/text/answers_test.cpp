#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/test_data.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const Tokenizer& load_qwen2() {
  static const Tokenizer tokenizer = Tokenizer::from_file(get_data_path("qwen2.tokenizer.json"));
  return tokenizer;
}

ChatTemplate make_template(const std::string& jinja, TemplateSettings settings = {}) {
  return {{.jinja_source = jinja, .name = "chat_template.jinja", .is_checkpoint_default = true},
          std::move(settings),
          load_qwen2()};
}

/// Returns a ChatML template whose assistant turns are `answer`, in which `c` is the text.
ChatTemplate make_chatml(const std::string& answer) {
  return make_template(
      "{% for m in messages %}{% set c = m['content'] %}{{ '<|im_start|>' + m['role'] + '\n' }}"
      "{% if m['role'] == 'assistant' %}" +
      answer +
      "{% else %}{{ c + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}");
}

std::vector<std::string> get_learned_texts(const RenderedChat& chat) {
  std::vector<std::string> texts;
  for (const TextSpan& span : chat.answers) texts.push_back(chat.text.substr(span.begin, span.end - span.begin));
  return texts;
}

std::vector<std::string> get_learned_texts(const ChatTemplate& chat_template, const std::string& answer) {
  const RenderedChat chat =
      chat_template.render(std::vector<Turn>{{Role::kUser, "Is it red?"}, {Role::kAssistant, answer}}, false);
  return get_learned_texts(chat);
}

/// The code of Qwen3's template that splits off the reasoning; the template writes the tags itself.
constexpr const char* kParseReasoning =
    "{% set r = '' %}{% if '</think>' in c %}"
    "{% set r = c.split('</think>')[0].split('<think>')[-1].strip('\n') %}"
    "{% set c = c.split('</think>')[-1].lstrip('\n') %}{% endif %}";

TEST(Answers, TemplateTextInsideAnswersIsLearned) {
  const ChatTemplate chat_template =
      make_chatml(std::string(kParseReasoning) + "{{ '<think>\n' + r + '\n</think>\n\n' + c + '<|im_end|>' }}");
  EXPECT_THAT(get_learned_texts(chat_template, "<think>\nI see red.\n</think>\n\nYes"),
              ElementsAre("<think>\nI see red.\n</think>\n\nYes<|im_end|>"));
  EXPECT_THAT(get_learned_texts(chat_template, "<think>I see red.</think>Yes"),
              ElementsAre("<think>\nI see red.\n</think>\n\nYes<|im_end|>"));
  EXPECT_THAT(get_learned_texts(chat_template, "<think>\n\n</think>\n\nYes"),
              ElementsAre("<think>\n\n</think>\n\nYes<|im_end|>"));
  EXPECT_THAT(get_learned_texts(chat_template, "<think>\nI see red.\n</think>"),
              ElementsAre("<think>\nI see red.\n</think>\n\n<|im_end|>"));
  EXPECT_THAT(get_learned_texts(chat_template, "<think></think>"), ElementsAre("<think>\n\n</think>\n\n<|im_end|>"));
  const RenderedChat chat = chat_template.render(
      std::vector<Turn>{{Role::kUser, "Red?"}, {Role::kAssistant, "<think>\nHm.\n</think>\n\nYes"}}, false);
  EXPECT_THAT(chat.notices, IsEmpty());
  // The empty block before an answer without reasoning is template text.
  EXPECT_THAT(get_learned_texts(chat_template, "Yes"), ElementsAre("Yes<|im_end|>"));
}

TEST(Answers, OtherMarkersAndLinesAreLearned) {
  EXPECT_THAT(
      get_learned_texts(
          make_chatml(
              "{% set p = c.split('Final answer: ') %}"
              "{{ ('[analysis] ' + p[0] + ' [final answer] ' if p | length > 1 else '') + p[-1] + '<|im_end|>' }}"),
          "It is wet. Final answer: Rain"),
      ElementsAre("It is wet.  [final answer] Rain<|im_end|>"));
  EXPECT_THAT(
      get_learned_texts(make_chatml("{% for line in c.splitlines() %}{{ line.strip() + '\n' }}{% endfor %}<|im_end|>"),
                        "One.\nTwo.\nThree."),
      ElementsAre("One.\nTwo.\nThree.\n<|im_end|>"));
  EXPECT_THAT(
      get_learned_texts(
          make_chatml("{{ c.replace('<a>', '').replace('</a>', '') | indent(0) }}{{ '</a>' if '<a>' in c else '' }}"
                      "<|im_end|>"),
          "So <a>Rain</a>"),
      ElementsAre("So Rain</a><|im_end|>"));
  // Text that a template adds to some answers precedes their end; no second end is added.
  EXPECT_THAT(get_learned_texts(make_chatml("{{ c + (' [1]' if 'Rain' in c else '') + '<|im_end|>' }}"), "Rain"),
              ElementsAre("Rain [1]<|im_end|>"));
}

TEST(Answers, GenerationPromptIsNotLearned) {
  const ChatTemplate chat_template = make_template(
      "{% for m in messages %}{% set c = m['content'] %}{{ '<|im_start|>' + m['role'] + '\n' }}"
      "{% if m['role'] == 'assistant' %}{{ '<think>\n' + c.removeprefix('<think>').lstrip() }}"
      "{% else %}{{ c }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}");
  const RenderedChat chat = chat_template.render(
      std::vector<Turn>{{Role::kUser, "Is it red?"}, {Role::kAssistant, "<think>\nHm.\n</think>\nYes"}}, false);
  EXPECT_THAT(get_learned_texts(chat), ElementsAre("Hm.\n</think>\nYes<|im_end|>"));
}

TEST(Answers, GenerationBlocksAreLearned) {
  // As return_assistant_tokens_mask of transformers 5.24.0, plus the end of turn.
  EXPECT_THAT(
      get_learned_texts(
          make_chatml("{% generation %}{{ '<think>\n\n</think>\n\n' + c + '<|im_end|>' }}{% endgeneration %}"), "Yes"),
      ElementsAre("<think>\n\n</think>\n\nYes<|im_end|>"));
  EXPECT_THAT(get_learned_texts(make_chatml("{% generation %}{{ c }}<|im_end|>{{ '\n' }}{% endgeneration %}"), "Yes"),
              ElementsAre("Yes<|im_end|>\n"));
  EXPECT_THAT(
      get_learned_texts(make_chatml("{% generation %}{{ 'So: ' + c }}{% endgeneration %}{{ '<|im_end|>' }}"), "Yes"),
      ElementsAre("So: Yes<|im_end|>"));
  EXPECT_THAT(
      get_learned_texts(make_chatml("{% macro answer() %}{{ 'A' }}{% generation %}{{ 'B' + c }}{% endgeneration %}"
                                    "{% endmacro %}{{ answer() + '<|im_end|>' }}"),
                        "Yes"),
      ElementsAre("BYes<|im_end|>"));
  EXPECT_THAT(
      make_chatml("{% generation %}{{ '<think>\n\n</think>\n\n' + c + '<|im_end|>' }}{% endgeneration %}").describe(),
      Not(HasSubstr("not learned")));
}

TEST(Answers, EndOfTurnIsAddedAfterAGenerationBlock) {
  const ChatTemplate chat_template = make_template(
      "{% for m in messages %}{{ m['role'] + ': ' }}{% if m['role'] == 'assistant' %}{% generation %}"
      "{{ m['content'] + ' #' }}{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}{{ '\n' }}{% endfor %}",
      {.eos_tokens = {"<|im_end|>"}});
  const RenderedChat chat =
      chat_template.render(std::vector<Turn>{{Role::kUser, "Red?"}, {Role::kAssistant, "Yes"}}, false);
  EXPECT_THAT(get_learned_texts(chat), ElementsAre("Yes #<|im_end|>"));
  EXPECT_EQ(chat.text, "user: Red?\nassistant: Yes #<|im_end|>");
}

TEST(Answers, EndOfTurnInATextGivesANotice) {
  const ChatTemplate chat_template =
      make_template("{% for m in messages %}{{ m['role'] + ': ' + m['content'] + '<|im_end|>\n' }}{% endfor %}",
                    {.eos_tokens = {"<|im_end|>"}});
  for (const Role role : {Role::kSystem, Role::kUser, Role::kAssistant}) {
    std::vector<Turn> turns{{Role::kSystem, "Be brief."}, {Role::kUser, "Red?"}, {Role::kAssistant, "Yes"}};
    EXPECT_THAT(chat_template.render(turns, false).notices, testing::IsEmpty());
    turns[static_cast<size_t>(role)].text += "<|im_end|>";
    const auto notices = chat_template.render(turns, false).notices;
    ASSERT_THAT(notices, testing::SizeIs(1));
    EXPECT_THAT(notices[0].kind, testing::HasSubstr("end-of-turn token"));
  }
}

TEST(Answers, TrailingWhiteSpaceOfAGenerationBlockIsNotLearned) {
  const ChatTemplate chat_template = make_template(
      "{% for m in messages %}{{ m['role'] + ': ' }}{% if m['role'] == 'assistant' %}{% generation %}"
      "{{ m['content'] + ' ' }}{% endgeneration %}{% else %}{{ m['content'] + ' ' }}{% endif %}{% endfor %}",
      {.eos_tokens = {"<|im_end|>"}});
  const RenderedChat chat = chat_template.render(
      std::vector<Turn>{
          {Role::kUser, "Red?"}, {Role::kAssistant, "Yes"}, {Role::kUser, "Big?"}, {Role::kAssistant, "No"}},
      false);
  EXPECT_THAT(get_learned_texts(chat), ElementsAre("Yes", "No<|im_end|>"));
}

TEST(Answers, MediaOfAnAnswerAreNotLearned) {
  const std::string jinja =
      "{% for m in messages %}{{ m['role'] + ':' }}{% if m['role'] == 'assistant' %}{% generation %}"
      "{% for p in m['content'] %}{{ '<|image_pad|>' if p['type'] == 'image' else p['text'] }}{% endfor %}"
      "{% endgeneration %}{% else %}{% for p in m['content'] %}{{ p['text'] if p['type'] == 'text' }}{% endfor %}"
      "{% endif %}{{ '<|im_end|>' }}{% endfor %}";
  const std::vector<Turn> turns{{Role::kUser, "Draw."}, {Role::kAssistant, "Here: <image> and <image>."}};
  const TemplateSettings settings{.image_markup = {"<|image_pad|>", "<|image_pad|>"}};
  for (const bool has_generation_blocks : {true, false}) {
    std::string jinja_variant = jinja;
    if (!has_generation_blocks) {
      for (const std::string tag : {"{% generation %}", "{% endgeneration %}"})
        jinja_variant.erase(jinja_variant.find(tag), tag.size());
    }
    EXPECT_THAT(get_learned_texts(make_template(jinja_variant, settings).render(turns, false)),
                ElementsAre("Here: ", " and ", ".<|im_end|>"));
  }
}

std::vector<std::string> get_notice_kinds(const RenderedChat& chat) {
  std::vector<std::string> notice_kinds;
  for (const io::Notice& notice : chat.notices) notice_kinds.push_back(notice.kind);
  return notice_kinds;
}

TEST(Answers, OmittedTextGivesANotice) {
  const ChatTemplate dropping_template = make_template(
      "{% for m in messages if m['role'] != 'system' %}{{ '<|im_start|>' + m['role'] + '\n' }}"
      "{{ m['content'].split('</think>')[-1].split('##')[0].strip() + '<|im_end|>\n' }}{% endfor %}");
  const auto get_kinds = [&](const std::vector<Turn>& turns) {
    return get_notice_kinds(dropping_template.render(turns, false));
  };
  const Turn question{Role::kUser, "Red?"}, answer{Role::kAssistant, " Yes \n"};
  EXPECT_THAT(get_kinds({question, answer}), IsEmpty());
  EXPECT_THAT(
      get_kinds({question, {Role::kAssistant, "<think>Hm.</think>Yes"}, question, {Role::kAssistant, "a</think>b"}}),
      ElementsAre("text of an answer that the chat template omits"));
  EXPECT_THAT(get_kinds({{Role::kSystem, "Be brief."}, question, answer}),
              ElementsAre("system text that the chat template omits"));
  EXPECT_THAT(get_kinds({{Role::kUser, "Red? ## Or blue?"}, answer}),
              ElementsAre("text of a question that the chat template omits"));
  const RenderedChat chat =
      dropping_template.render(std::vector<Turn>{question, {Role::kAssistant, "<think>Hm.</think>Yes"}}, false);
  EXPECT_EQ(chat.notices.at(0).example, "<think>Hm.</think>Yes");
}

TEST(Answers, TextAfterTheGenerationPromptGivesANotice) {
  // As Qwen3.5's template: the prompt opens a block that `thinks: false` closes.
  const ChatTemplate chat_template = make_template(
      "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
      "{% if m['role'] == 'assistant' %}{{ '<think>\n\n</think>\n\n' }}{% endif %}{{ m['content'] + '<|im_end|>\n' }}"
      "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}"
      "{% if thinks is false %}{{ '\n</think>\n\n' }}{% endif %}{% endif %}");
  const std::vector<Turn> turns{
      {Role::kUser, "Red?"}, {Role::kAssistant, "Yes"}, {Role::kUser, "Big?"}, {Role::kAssistant, "No"}};
  const std::vector<io::TemplateValue> opens{{"thinks", "true"}}, closes{{"thinks", "false"}};
  const auto unlearned = ElementsAre("text between the generation prompt and an answer, which is not learned");
  EXPECT_THAT(get_notice_kinds(chat_template.render(turns, false)), unlearned);
  EXPECT_THAT(get_notice_kinds(chat_template.render(turns, false, opens)), unlearned);
  EXPECT_THAT(get_notice_kinds(chat_template.render(turns, false, closes)), IsEmpty());
  EXPECT_THAT(get_learned_texts(chat_template.render(turns, false, closes)),
              ElementsAre("Yes<|im_end|>", "No<|im_end|>"));
}

TEST(Answers, PresetsOfQwen35AskAsTheyTrain) {
  const ChatTemplate chat_template =
      make_template(io::read_file(VLMTRAIN_SOURCE_DIR "/configs/models/qwen3.5-tiny/chat_template.jinja"));
  const std::vector<Turn> turns{{Role::kUser, "Red?"}, {Role::kAssistant, "Yes"}};
  const std::vector<io::TemplateValue> variables{{"enable_thinking", "false"}};
  const RenderedChat chat = chat_template.render(turns, false, variables);
  EXPECT_THAT(chat.notices, IsEmpty());
  const std::string prompt = chat_template.render({turns.data(), 1}, true, variables).text;
  EXPECT_EQ(chat.text, prompt + "Yes<|im_end|>\n");
}

TEST(Answers, AnswersWithoutEndOfTurnGiveANotice) {
  const ChatTemplate chat_template = make_template(
      "{% for m in messages %}{{ m['role'] + ': ' + m['content'] + ' ' }}{% endfor %}", {.eos_tokens = {"<|im_end|>"}});
  std::vector<Turn> turns{{Role::kUser, "Red?"}, {Role::kAssistant, "Yes"}};
  EXPECT_THAT(get_notice_kinds(chat_template.render(turns, false)), IsEmpty());
  turns.push_back({Role::kUser, "Why?"});
  EXPECT_THAT(get_notice_kinds(chat_template.render(turns, false)),
              ElementsAre("answers without an end-of-turn token"));
}

}  // namespace
}  // namespace vlmtrain::text
