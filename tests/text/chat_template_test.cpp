#include "vlmtrain/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "text/test_data.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::text {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;

const std::vector<Turn> kTwoRounds{{Role::kUser, "<image>\nWhat is shown?"},
                                   {Role::kAssistant, "A cat."},
                                   {Role::kUser, "What colour?"},
                                   {Role::kAssistant, "Black."}};

constexpr const char* kQwenImage = "<|vision_start|><|image_pad|><|vision_end|>";

const Tokenizer& load_tokenizer(const std::string& name) {
  static std::map<std::string, Tokenizer> tokenizers;
  const auto entry = tokenizers.find(name);
  if (entry != tokenizers.end()) return entry->second;
  const auto preset = std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "configs/models" / name / "tokenizer.json";
  const auto file = std::filesystem::exists(preset) ? preset.string() : get_data_path(name + ".tokenizer.json");
  return tokenizers.emplace(name, Tokenizer::from_file(file)).first->second;
}

/// Returns a tokenizer that has the tokens of a built-in template.
const Tokenizer& load_template_tokenizer(std::string_view name) {
  static const std::map<std::string_view, std::string> tokenizer_names{
      {"smolvlm", "smollm2"}, {"qwen2_vl", "qwen2"},          {"llava_qwen", "qwen2"},      {"chatml", "qwen2"},
      {"llava_v1", "llama2"}, {"mistral_instruct", "llama2"}, {"question_answer", "qwen2"}, {"llava_1_5", "llama2"},
      {"internvl", "qwen2"},  {"gemma3", "gemma-3-tiny"},     {"gemma4", "gemma-4-tiny"}};
  return load_tokenizer(tokenizer_names.at(name));
}

ChatTemplate make_builtin_template(std::string_view name) {
  TemplateSettings settings{.eos_tokens = {"</s>"}};
  if (name == "qwen2_vl") settings.image_markup = {kQwenImage, "<|image_pad|>"};
  return {get_builtin_template(name), settings, load_template_tokenizer(name)};
}

/// Returns a template of a checkpoint.
ChatTemplate make_checkpoint_template(const std::string& jinja, const std::string& tokenizer,
                                      TemplateSettings settings = {}) {
  return {{.jinja_source = jinja, .name = "chat_template.jinja", .is_checkpoint_default = true},
          std::move(settings),
          load_tokenizer(tokenizer)};
}

std::string get_load_error(const std::string& jinja, TemplateSettings settings = {}) {
  try {
    make_checkpoint_template(jinja, "llama2", std::move(settings));
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    return error.what();
  }
  return "taken";
}

Role parse_role(const std::string& name) {
  if (name == "system") return Role::kSystem;
  return name == "user" ? Role::kUser : Role::kAssistant;
}

std::vector<std::string> get_texts(const RenderedChat& chat, const std::vector<TextSpan>& spans) {
  std::vector<std::string> texts;
  for (const TextSpan& span : spans) texts.push_back(chat.text.substr(span.begin, span.end - span.begin));
  return texts;
}

std::vector<std::string> get_answers(const RenderedChat& chat) {
  return get_texts(chat, chat.answers);
}

std::vector<std::string> get_media(const RenderedChat& chat) {
  std::vector<TextSpan> spans;
  for (const MediaSpan& media_span : chat.media) spans.push_back(media_span.span);
  return get_texts(chat, spans);
}

TEST(BuiltinTemplates, RendersAsJinja2) {
  std::set<std::string> names;
  for (const auto& expected : read_json_data("chats.golden.json")) {
    const std::string name = expected["template"];
    const ChatTemplate chat_template = make_builtin_template(name);
    std::vector<Turn> turns;
    for (const auto& turn : expected["turns"]) turns.push_back({parse_role(turn["role"]), turn["text"]});
    std::string text = expected["rendered"];
    const bool ends_with_answer = !expected["add_generation_prompt"] && turns.back().role == Role::kAssistant;
    // render() adds the end of turn.
    if (name == "llava_1_5" && ends_with_answer) text = text.substr(0, text.size() - 1) + "</s>";
    EXPECT_EQ(chat_template.render(turns, expected["add_generation_prompt"]).text, text) << name;
    names.insert(name);
  }
  EXPECT_EQ(names.size(), get_builtin_template_names().size());
}

TEST(BuiltinTemplates, AnswerSpansCoverWhatTheModelGenerates) {
  const auto answers = [](const char* name) {
    return get_answers(make_builtin_template(name).render(kTwoRounds, false));
  };
  EXPECT_THAT(answers("smolvlm"), ElementsAre(" A cat.<end_of_utterance>", " Black.<end_of_utterance>"));
  EXPECT_THAT(answers("qwen2_vl"), ElementsAre("A cat.<|im_end|>", "Black.<|im_end|>"));
  EXPECT_THAT(answers("chatml"), ElementsAre("A cat.<|im_end|>", "Black.<|im_end|>"));
  EXPECT_THAT(answers("llava_1_5"), ElementsAre(" A cat.", " Black.</s>"));
  EXPECT_THAT(answers("llava_v1"), ElementsAre(" A cat.</s>", " Black.</s>"));
  EXPECT_THAT(answers("mistral_instruct"), ElementsAre(" A cat. </s>", " Black. </s>"));
}

TEST(BuiltinTemplates, AnAnswerFollowsTheGenerationPrompt) {
  for (const std::string_view name : get_builtin_template_names()) {
    const ChatTemplate chat_template = make_builtin_template(name);
    const RenderedChat chat = chat_template.render(kTwoRounds, false);
    const RenderedChat prompt = chat_template.render({kTwoRounds.data(), 3}, true);
    EXPECT_EQ(chat.text.substr(0, chat.answers[1].begin), prompt.text) << name;
    EXPECT_TRUE(get_answers(chat)[1].ends_with(chat_template.end_of_turn_token())) << name;
    EXPECT_EQ(chat_template.omits_last_end_of_turn(), name == "llava_1_5") << name;
  }
}

TEST(BuiltinTemplates, KeepsAllImages) {
  const std::vector<Turn> turns{{Role::kUser, "<image>\n<image>\nCompare them with <image>."},
                                {Role::kAssistant, "No."}};
  for (const std::string_view name : get_builtin_template_names()) {
    const std::string token = name == "qwen2_vl" ? "<|image_pad|>" : "<image>";
    EXPECT_THAT(get_media(make_builtin_template(name).render(turns, false)), ElementsAre(token, token, token)) << name;
  }
}

TEST(BuiltinTemplates, KeepsLiteralMarks) {
  const std::vector<Turn> turns{{Role::kUser, "<image>\nWhat does <image> do? And <video>?", {18, 34}},
                                {Role::kAssistant, "Write <image>.", {6}}};
  const TemplateSettings settings{.image_markup = {kQwenImage, "<|image_pad|>"}};
  for (const char* const name : {"qwen2_vl", "chatml", "llava_qwen"}) {
    const RenderedChat chat =
        ChatTemplate(get_builtin_template(name), settings, load_tokenizer("qwen2")).render(turns, false);
    EXPECT_THAT(get_media(chat), ElementsAre("<|image_pad|>")) << name;
    EXPECT_THAT(chat.text, AllOf(HasSubstr("What does <image> do? And <video>?"), HasSubstr("Write <image>."))) << name;
  }
}

TEST(BuiltinTemplates, WritesTheFamilysImageTokens) {
  const TemplateSettings settings{.image_markup = {kQwenImage, "<|image_pad|>"}};
  const ChatTemplate chatml(get_builtin_template("chatml"), settings, load_tokenizer("qwen2"));
  EXPECT_THAT(chatml.render(kTwoRounds, false).text, HasSubstr(std::string("user\n") + kQwenImage + "What is shown?"));
  // The template that a saved checkpoint contains.
  EXPECT_THAT(chatml.source().jinja_source, HasSubstr(kQwenImage));
}

TEST(BuiltinTemplates, DropsTheLineBreakAfterAnOpeningImageOnly) {
  const auto render_smolvlm = [](const char* text) {
    return make_builtin_template("smolvlm").render(std::vector<Turn>{{Role::kUser, text}}, false).text;
  };
  EXPECT_EQ(render_smolvlm("<image>\nWhat?"), "<|im_start|>User:<image>What?<end_of_utterance>\n");
  EXPECT_EQ(render_smolvlm("<image>\r\nWhat?"), "<|im_start|>User:<image>What?<end_of_utterance>\n");
  EXPECT_EQ(render_smolvlm("<image>\n\nWhat?"), "<|im_start|>User:<image>\nWhat?<end_of_utterance>\n");
  EXPECT_EQ(render_smolvlm("What?\n<image>\n"), "<|im_start|>User: What?\n<image>\n<end_of_utterance>\n");
}

TEST(BuiltinTemplates, UnknownNameListsTheTemplates) {
  try {
    get_builtin_template("smolvml");
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("\"smolvml\""),
                                    HasSubstr("chatml, gemma3, gemma4, internvl, llava_1_5, llava_qwen, llava_v1, "
                                              "mistral_instruct, question_answer, qwen2_vl, smolvlm")));
  }
}

TEST(BuiltinTemplates, RejectsUnsupportedConversations) {
  EXPECT_THROW(make_builtin_template("smolvlm").render({}, false), UserError);
  const std::vector<Turn> turns_with_late_system{
      {Role::kUser, "a"}, {Role::kAssistant, "b"}, {Role::kSystem, "c"}, {Role::kUser, "d"}};
  EXPECT_THROW(make_builtin_template("mistral_instruct").render(turns_with_late_system, false), UserError);
  EXPECT_NO_THROW(make_builtin_template("smolvlm").render(turns_with_late_system, false));
}

TEST(BuiltinTemplates, RejectsATokenizerWithoutItsEndToken) {
  EXPECT_THROW(ChatTemplate(get_builtin_template("chatml"), {}, load_tokenizer("llama2")), UserError);
}

/// A template for strings, which fails for lists of blocks, as most templates of text models.
constexpr const char* kStringTemplate =
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'assistant' %}{{ 'A: ' + m['content'] + eos_token }}"
    "{% else %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'A:' }}{% endif %}";

const TemplateSettings kLlamaTokens{.special_tokens_map = {{"bos_token", "<s>"}, {"eos_token", "</s>"}},
                                    .eos_tokens = {"</s>"}};

TEST(ChatTemplate, StringTemplatesGetImageTokensInTheText) {
  const ChatTemplate chat_template = make_checkpoint_template(kStringTemplate, "llama2", kLlamaTokens);
  const RenderedChat chat = chat_template.render(kTwoRounds, false);
  EXPECT_EQ(chat.text, "<s>user: <image>\nWhat is shown?\nA: A cat.</s>user: What colour?\nA: Black.</s>");
  EXPECT_THAT(get_answers(chat), ElementsAre(" A cat.</s>", " Black.</s>"));
  EXPECT_THAT(get_media(chat), ElementsAre("<image>"));
  EXPECT_TRUE(chat_template.writes_bos_token());
}

TEST(ChatTemplate, TemplatesThatPrintBlocksGetStrings) {
  for (const char* content : {"m.content", "m.content | string", "m.content | upper", "m.content | e"}) {
    const ChatTemplate chat_template = make_checkpoint_template(
        std::string("{% for m in messages %}{{ m.role }}: {{ ") + content + " }}</s>{% endfor %}", "llama2");
    EXPECT_THAT(chat_template.render({kTwoRounds.data() + 2, 2}, false).text, testing::ContainsRegex("B(lack|LACK)\\."))
        << content;
    EXPECT_THAT(chat_template.render({kTwoRounds.data() + 2, 2}, false).text, Not(testing::ContainsRegex("type|TYPE")))
        << content;
  }
}

TEST(ChatTemplate, OnlyAnswerTextIsLearned) {
  // The question contains the text of the answer, and the template strips old reasoning.
  const ChatTemplate chat_template = make_checkpoint_template(
      "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
      "{% if m['role'] == 'assistant' and not loop.last %}{{ m['content'].split('</think>')[-1].strip() }}"
      "{% else %}{{ m['content'] }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
      "qwen2");
  const std::vector<Turn> turns{{Role::kUser, "Say: Yes.<|im_end|>"},
                                {Role::kAssistant, "<think>hm</think> Yes."},
                                {Role::kUser, "Yes."},
                                {Role::kAssistant, "<think>ah</think> Yes."}};
  const RenderedChat chat = chat_template.render(turns, false);
  EXPECT_THAT(get_answers(chat), ElementsAre("Yes.<|im_end|>", "<think>ah</think> Yes.<|im_end|>"));
  EXPECT_EQ(chat.answers[0].begin, chat.text.find("assistant\nYes.") + std::string("assistant\n").size());
}

TEST(ChatTemplate, RepeatedAnswersAreRejected) {
  const std::string turn = "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}";
  const TemplateSettings tokens{.eos_tokens = {"</s>"}};
  EXPECT_THAT(get_load_error("{% for m in messages %}{{ m['content'] + ';' }}{% endfor %}{% for m in messages %}" +
                                 turn + "{% endfor %}",
                             tokens),
              HasSubstr("more than once"));
  // Only in conversations of three rounds, which the probe does not render.
  const ChatTemplate chat_template = make_checkpoint_template(
      "{% if messages | length > 4 %}{{ messages[1]['content'] }}{% endif %}"
      "{% for m in messages %}" +
          turn + "{% endfor %}",
      "qwen2");
  std::vector<Turn> turns = kTwoRounds;
  EXPECT_NO_THROW(chat_template.render(turns, false));
  turns.insert(turns.end(), kTwoRounds.begin() + 2, kTwoRounds.end());
  EXPECT_THROW(chat_template.render(turns, false), UserError);
}

TEST(ChatTemplate, TextBetweenAnAnswerAndItsEndIsLearned) {
  const ChatTemplate chat_template = make_checkpoint_template(
      "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
      "{{ ' (end of answer)' if m['role'] == 'assistant' }}{{ '<|im_end|>\n' }}{% endfor %}",
      "qwen2");
  EXPECT_THAT(get_answers(chat_template.render(kTwoRounds, false)),
              ElementsAre("A cat. (end of answer)<|im_end|>", "Black. (end of answer)<|im_end|>"));
  EXPECT_FALSE(chat_template.omits_last_end_of_turn());
}

TEST(ChatTemplate, EarlierAnswersMayEndDifferently) {
  const ChatTemplate chat_template = make_checkpoint_template(
      "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
      "{{ '<|endoftext|>' if loop.last else '<|im_end|>\n' }}{% endfor %}",
      "qwen2");
  EXPECT_THAT(get_answers(chat_template.render(kTwoRounds, false)),
              ElementsAre("A cat.<|im_end|>", "Black.<|endoftext|>"));
}

TEST(ChatTemplate, RemovedTextLeavesNoAnswerSpan) {
  const ChatTemplate chat_template = make_checkpoint_template(
      "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{% set parts = m['content'].split('|') %}"
      "{{ parts[0].lstrip() + ' and ' + parts[-1] if parts | length > 1 else m['content'] }}{{ '<|im_end|>\n' }}"
      "{% endfor %}",
      "qwen2");
  const std::vector<Turn> turns{{Role::kUser, "Hello?"}, {Role::kAssistant, "|Yes."}};
  EXPECT_THAT(get_answers(chat_template.render(turns, false)), ElementsAre("Yes.<|im_end|>"));
}

TEST(ChatTemplate, EmptyAnswerIsItsEndOfTurn) {
  const std::vector<Turn> turns{{Role::kUser, "Hello?"}, {Role::kAssistant, ""}};
  EXPECT_THAT(get_answers(make_builtin_template("qwen2_vl").render(turns, false)), ElementsAre("<|im_end|>"));
  EXPECT_THAT(get_answers(make_builtin_template("smolvlm").render(turns, false)), ElementsAre(" <end_of_utterance>"));
}

TEST(ChatTemplate, ImageTokenTextInAQuestionIsNoImage) {
  const std::vector<Turn> turns{{Role::kUser, "<image>\nWhat does <|image_pad|> mean?"}, {Role::kAssistant, "This."}};
  EXPECT_THAT(get_media(make_builtin_template("qwen2_vl").render(turns, false)), ElementsAre("<|image_pad|>"));
}

TEST(ChatTemplate, AddsAMissingEndOfTurnAfterTheLastAnswer) {
  const std::string jinja =
      "{% for m in messages %}{{ m['role'].upper() + ': ' }}{% for part in m['content'] %}"
      "{{ '<image>\n' if part['type'] == 'image' else part['text'] + ' ' }}{% endfor %}{% endfor %}"
      "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}";
  const ChatTemplate chat_template = make_checkpoint_template(jinja, "llama2", {.eos_tokens = {"</s>"}});
  EXPECT_THAT(get_answers(chat_template.render(kTwoRounds, false)), ElementsAre(" A cat.", " Black.</s>"));
  EXPECT_EQ(chat_template.render(kTwoRounds, false).text,
            "USER: <image>\nWhat is shown? ASSISTANT: A cat. USER: What colour? ASSISTANT: Black.</s>");
  EXPECT_THAT(chat_template.describe(), HasSubstr("so </s> is appended"));
  EXPECT_THAT(get_load_error(jinja), AllOf(HasSubstr("chat_template.jinja"), HasSubstr("eos_token")));
}

TEST(ChatTemplate, AddsAnEndOfTurnThatOnlyTheLastAnswerLacks) {
  const ChatTemplate chat_template = make_checkpoint_template(
      "{% for m in messages %}{{ m['role'] + ':' + m['content'] + ('' if loop.last else '</s>') }}{% endfor %}"
      "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}",
      "llama2", {.eos_tokens = {"</s>"}});
  EXPECT_EQ(chat_template.render({kTwoRounds.data() + 2, 2}, false).text, "user:What colour?</s>assistant:Black.</s>");
}

TEST(ChatTemplate, DescribesDifferencesBetweenPromptAndTraining) {
  const ChatTemplate chat_template = make_checkpoint_template(
      "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}",
      "qwen2");
  EXPECT_THAT(chat_template.describe(), HasSubstr("assistant\\n<think>\\n"));
  EXPECT_THAT(chat_template.describe(), Not(HasSubstr("system")));
  const ChatTemplate spaced_template = make_checkpoint_template(
      "{% for m in messages if m['role'] != 'system' %}{{ m['role'] + ': ' + m['content'] + '<|im_end|>' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}",
      "qwen2");
  EXPECT_THAT(spaced_template.describe(),
              AllOf(HasSubstr("omits system messages"), HasSubstr("ends within a token of the training text")));
  EXPECT_THAT(get_answers(chat_template.render(kTwoRounds, false)),
              ElementsAre("A cat.<|im_end|>", "Black.<|im_end|>"));
}

TEST(ChatTemplate, RejectsUnusableTemplates) {
  const TemplateSettings tokens{.eos_tokens = {"</s>"}};
  EXPECT_THAT(get_load_error("{% for m in messages %}\n{{ m['content'] | shout }}{% endfor %}", tokens),
              AllOf(HasSubstr("chat_template.jinja:2"), HasSubstr("shout")));
  EXPECT_THAT(get_load_error("{% for m in messages %}{{ m['content'] }}", tokens), HasSubstr("chat_template.jinja:1"));
  EXPECT_THAT(get_load_error("{{ raise_exception('Only for tools') }}", tokens), HasSubstr("Only for tools"));
  EXPECT_THAT(get_load_error("Hello.", tokens), HasSubstr("omits the answers"));
}

TEST(ChatTemplate, ReportsWhatATemplateRaises) {
  const ChatTemplate chat_template = make_checkpoint_template(
      "{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
      "{% endif %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}",
      "qwen2");
  const std::vector<Turn> turns{{Role::kSystem, "Be brief."}, {Role::kUser, "Hello?"}};
  try {
    chat_template.render(turns, false);
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), HasSubstr("System role not supported"));
  }
}

TEST(ChatTemplate, RendersTheGivenDate) {
  const ChatTemplate chat_template = make_checkpoint_template(
      "{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m['content'] + '</s>' }}{% endfor %}", "llama2",
      {.eos_tokens = {"</s>"}, .current_time = "2026-11-22"});
  EXPECT_EQ(chat_template.render({kTwoRounds.data() + 2, 2}, false).text, "22 Nov 2026What colour?</s>Black.</s>");
}

}  // namespace
}  // namespace vlmtrain::text
