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

const Tokenizer& tokenizer_of(const std::string& kind) {
  static std::map<std::string, Tokenizer> loaded;
  const auto found = loaded.find(kind);
  if (found != loaded.end()) return found->second;
  const auto preset = std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "configs/models" / kind / "tokenizer.json";
  const auto file = std::filesystem::exists(preset) ? preset.string() : data_path(kind + ".tokenizer.json");
  return loaded.emplace(kind, Tokenizer::from_file(file)).first->second;
}

/// A tokenizer that has the tokens of a template of the table.
const Tokenizer& tokenizer_for(std::string_view name) {
  static const std::map<std::string_view, std::string> kinds{
      {"smolvlm", "smollm2"}, {"qwen2_vl", "qwen2"},          {"llava_qwen", "qwen2"},      {"chatml", "qwen2"},
      {"llava_v1", "llama2"}, {"mistral_instruct", "llama2"}, {"question_answer", "qwen2"}, {"llava_1_5", "llama2"},
      {"internvl", "qwen2"},  {"gemma3", "gemma-3-tiny"}};
  return tokenizer_of(kinds.at(name));
}

ChatTemplate of_table(std::string_view name) {
  TemplateSettings settings{.end_tokens = {"</s>"}};
  if (name == "qwen2_vl") settings.image = {kQwenImage, "<|image_pad|>"};
  return {template_by_name(name), settings, tokenizer_for(name)};
}

/// A checkpoint's own.
ChatTemplate own(const std::string& jinja, const std::string& tokenizer, TemplateSettings settings = {}) {
  return {{.jinja = jinja, .name = "chat_template.jinja", .is_in_checkpoint = true},
          std::move(settings),
          tokenizer_of(tokenizer)};
}

std::string refusal_of(const std::string& jinja, TemplateSettings settings = {}) {
  try {
    own(jinja, "llama2", std::move(settings));
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    return error.what();
  }
  return "taken";
}

Role role_of(const std::string& name) {
  if (name == "system") return Role::kSystem;
  return name == "user" ? Role::kUser : Role::kAssistant;
}

std::vector<std::string> texts_at(const RenderedChat& chat, const std::vector<Span>& spans) {
  std::vector<std::string> texts;
  for (const Span& span : spans) texts.push_back(chat.text.substr(span.begin, span.end - span.begin));
  return texts;
}

std::vector<std::string> answers_of(const RenderedChat& chat) {
  return texts_at(chat, chat.answers);
}

std::vector<std::string> media_of(const RenderedChat& chat) {
  std::vector<Span> spans;
  for (const MediumPlace& place : chat.media) spans.push_back(place.span);
  return texts_at(chat, spans);
}

TEST(TemplateTable, RendersWhatJinjaRenders) {
  std::set<std::string> seen;
  for (const auto& wanted : read_data("chats.golden.json")) {
    const std::string name = wanted["template"];
    const ChatTemplate chat_template = of_table(name);
    std::vector<Turn> turns;
    for (const auto& turn : wanted["turns"]) turns.push_back({role_of(turn["role"]), turn["text"]});
    std::string text = wanted["rendered"];
    const bool ends_with_answer = !wanted["add_generation_prompt"] && turns.back().role == Role::kAssistant;
    // What is put behind the last answer.
    if (name == "llava_1_5" && ends_with_answer) text = text.substr(0, text.size() - 1) + "</s>";
    EXPECT_EQ(chat_template.render(turns, wanted["add_generation_prompt"]).text, text) << name;
    seen.insert(name);
  }
  EXPECT_EQ(seen.size(), template_names().size());
}

TEST(TemplateTable, AnswersHoldWhatTheModelProduces) {
  const auto answers = [](const char* name) { return answers_of(of_table(name).render(kTwoRounds, false)); };
  EXPECT_THAT(answers("smolvlm"), ElementsAre(" A cat.<end_of_utterance>", " Black.<end_of_utterance>"));
  EXPECT_THAT(answers("qwen2_vl"), ElementsAre("A cat.<|im_end|>", "Black.<|im_end|>"));
  EXPECT_THAT(answers("chatml"), ElementsAre("A cat.<|im_end|>", "Black.<|im_end|>"));
  EXPECT_THAT(answers("llava_1_5"), ElementsAre(" A cat.", " Black.</s>"));
  EXPECT_THAT(answers("llava_v1"), ElementsAre(" A cat.</s>", " Black.</s>"));
  EXPECT_THAT(answers("mistral_instruct"), ElementsAre(" A cat. </s>", " Black. </s>"));
}

TEST(TemplateTable, AnAnswerFollowsTheGenerationPrompt) {
  for (const std::string_view name : template_names()) {
    const ChatTemplate chat_template = of_table(name);
    const RenderedChat whole = chat_template.render(kTwoRounds, false);
    const RenderedChat prompt = chat_template.render({kTwoRounds.data(), 3}, true);
    EXPECT_EQ(whole.text.substr(0, whole.answers[1].begin), prompt.text) << name;
    EXPECT_TRUE(answers_of(whole)[1].ends_with(chat_template.end_of_turn())) << name;
    EXPECT_EQ(chat_template.lacks_end_of_turn(), name == "llava_1_5") << name;
  }
}

TEST(TemplateTable, KeepsAllImages) {
  const std::vector<Turn> turns{{Role::kUser, "<image>\n<image>\nCompare them with <image>."},
                                {Role::kAssistant, "No."}};
  for (const std::string_view name : template_names()) {
    const std::string token = name == "qwen2_vl" ? "<|image_pad|>" : "<image>";
    EXPECT_THAT(media_of(of_table(name).render(turns, false)), ElementsAre(token, token, token)) << name;
  }
}

TEST(TemplateTable, LeavesMarksThatAreWordsAsTheyAre) {
  const std::vector<Turn> turns{{Role::kUser, "<image>\nWhat does <image> do? And <video>?", {18, 34}},
                                {Role::kAssistant, "Write <image>.", {6}}};
  const TemplateSettings settings{.image = {kQwenImage, "<|image_pad|>"}};
  for (const char* const name : {"qwen2_vl", "chatml", "llava_qwen"}) {
    const RenderedChat chat =
        ChatTemplate(template_by_name(name), settings, tokenizer_of("qwen2")).render(turns, false);
    EXPECT_THAT(media_of(chat), ElementsAre("<|image_pad|>")) << name;
    EXPECT_THAT(chat.text, AllOf(HasSubstr("What does <image> do? And <video>?"), HasSubstr("Write <image>."))) << name;
  }
}

TEST(TemplateTable, WritesWhatAFamilyHasForAnImage) {
  const TemplateSettings settings{.image = {kQwenImage, "<|image_pad|>"}};
  const ChatTemplate chatml(template_by_name("chatml"), settings, tokenizer_of("qwen2"));
  EXPECT_THAT(chatml.render(kTwoRounds, false).text, HasSubstr(std::string("user\n") + kQwenImage + "What is shown?"));
  // As whoever loads the saved checkpoint gets it.
  EXPECT_THAT(chatml.source().jinja, HasSubstr(kQwenImage));
}

TEST(TemplateTable, DropsTheLineBreakAfterAnOpeningImageOnly) {
  const auto smolvlm = [](const char* text) {
    return of_table("smolvlm").render(std::vector<Turn>{{Role::kUser, text}}, false).text;
  };
  EXPECT_EQ(smolvlm("<image>\nWhat?"), "<|im_start|>User:<image>What?<end_of_utterance>\n");
  EXPECT_EQ(smolvlm("<image>\r\nWhat?"), "<|im_start|>User:<image>What?<end_of_utterance>\n");
  EXPECT_EQ(smolvlm("<image>\n\nWhat?"), "<|im_start|>User:<image>\nWhat?<end_of_utterance>\n");
  EXPECT_EQ(smolvlm("What?\n<image>\n"), "<|im_start|>User: What?\n<image>\n<end_of_utterance>\n");
}

TEST(TemplateTable, NamesTheKnownTemplates) {
  try {
    template_by_name("smolvml");
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("\"smolvml\""), HasSubstr("chatml, gemma3, internvl, llava_1_5, llava_qwen, llava_v1, "
                                                          "mistral_instruct, question_answer, qwen2_vl, smolvlm")));
  }
}

TEST(TemplateTable, RefusesConversationsItHasNoPlaceFor) {
  EXPECT_THROW(of_table("smolvlm").render({}, false), UserError);
  const std::vector<Turn> late_system{
      {Role::kUser, "a"}, {Role::kAssistant, "b"}, {Role::kSystem, "c"}, {Role::kUser, "d"}};
  EXPECT_THROW(of_table("mistral_instruct").render(late_system, false), UserError);
  EXPECT_NO_THROW(of_table("smolvlm").render(late_system, false));
}

TEST(TemplateTable, RefusesATokenizerWithoutItsEnd) {
  EXPECT_THROW(ChatTemplate(template_by_name("chatml"), {}, tokenizer_of("llama2")), UserError);
}

/// Takes strings; with blocks it fails, as most templates of text models do.
constexpr const char* kOfStrings =
    "{{ bos_token }}{% for m in messages %}{% if m['role'] == 'assistant' %}{{ 'A: ' + m['content'] + eos_token }}"
    "{% else %}{{ m['role'] + ': ' + m['content'] + '\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'A:' }}{% endif %}";

const TemplateSettings kLlamaTokens{.special_tokens = {{"bos_token", "<s>"}, {"eos_token", "</s>"}},
                                    .end_tokens = {"</s>"}};

TEST(ChatTemplate, ATemplateOfStringsGetsImagesInThem) {
  const ChatTemplate chat_template = own(kOfStrings, "llama2", kLlamaTokens);
  const RenderedChat chat = chat_template.render(kTwoRounds, false);
  EXPECT_EQ(chat.text, "<s>user: <image>\nWhat is shown?\nA: A cat.</s>user: What colour?\nA: Black.</s>");
  EXPECT_THAT(answers_of(chat), ElementsAre(" A cat.</s>", " Black.</s>"));
  EXPECT_THAT(media_of(chat), ElementsAre("<image>"));
  EXPECT_TRUE(chat_template.writes_start());
}

TEST(ChatTemplate, ATemplateThatWouldWriteBlocksAsTheyAreGetsStrings) {
  for (const char* content : {"m.content", "m.content | string", "m.content | upper", "m.content | e"}) {
    const ChatTemplate chat_template =
        own(std::string("{% for m in messages %}{{ m.role }}: {{ ") + content + " }}</s>{% endfor %}", "llama2");
    EXPECT_THAT(chat_template.render({kTwoRounds.data() + 2, 2}, false).text, testing::ContainsRegex("B(lack|LACK)\\."))
        << content;
    EXPECT_THAT(chat_template.render({kTwoRounds.data() + 2, 2}, false).text, Not(testing::ContainsRegex("type|TYPE")))
        << content;
  }
}

TEST(ChatTemplate, OnlyWhatComesFromAnAnswerIsLearnt) {
  // The question holds the answer's very words, and the template strips old reasoning.
  const ChatTemplate chat_template =
      own("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}"
          "{% if m['role'] == 'assistant' and not loop.last %}{{ m['content'].split('</think>')[-1].strip() }}"
          "{% else %}{{ m['content'] }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}",
          "qwen2");
  const std::vector<Turn> turns{{Role::kUser, "Say: Yes.<|im_end|>"},
                                {Role::kAssistant, "<think>hm</think> Yes."},
                                {Role::kUser, "Yes."},
                                {Role::kAssistant, "<think>ah</think> Yes."}};
  const RenderedChat chat = chat_template.render(turns, false);
  EXPECT_THAT(answers_of(chat), ElementsAre("Yes.<|im_end|>", "<think>ah</think> Yes.<|im_end|>"));
  EXPECT_EQ(chat.answers[0].begin, chat.text.find("assistant\nYes.") + std::string("assistant\n").size());
}

TEST(ChatTemplate, AnAnswerThatIsWrittenTwiceIsRefused) {
  const std::string turn = "{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}";
  const TemplateSettings tokens{.end_tokens = {"</s>"}};
  EXPECT_THAT(refusal_of("{% for m in messages %}{{ m['content'] + ';' }}{% endfor %}{% for m in messages %}" + turn +
                             "{% endfor %}",
                         tokens),
              HasSubstr("more than once"));
  // Only where there are three rounds, which no probe has.
  const ChatTemplate chat_template =
      own("{% if messages | length > 4 %}{{ messages[1]['content'] }}{% endif %}"
          "{% for m in messages %}" +
              turn + "{% endfor %}",
          "qwen2");
  std::vector<Turn> turns = kTwoRounds;
  EXPECT_NO_THROW(chat_template.render(turns, false));
  turns.insert(turns.end(), kTwoRounds.begin() + 2, kTwoRounds.end());
  EXPECT_THROW(chat_template.render(turns, false), UserError);
}

TEST(ChatTemplate, WhatStandsBetweenAnAnswerAndItsEndIsLearnt) {
  const ChatTemplate chat_template =
      own("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
          "{{ ' (end of answer)' if m['role'] == 'assistant' }}{{ '<|im_end|>\n' }}{% endfor %}",
          "qwen2");
  EXPECT_THAT(answers_of(chat_template.render(kTwoRounds, false)),
              ElementsAre("A cat. (end of answer)<|im_end|>", "Black. (end of answer)<|im_end|>"));
  EXPECT_FALSE(chat_template.lacks_end_of_turn());
}

TEST(ChatTemplate, EarlierAnswersMayEndOtherwiseThanTheLast) {
  const ChatTemplate chat_template =
      own("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] }}"
          "{{ '<|endoftext|>' if loop.last else '<|im_end|>\n' }}{% endfor %}",
          "qwen2");
  EXPECT_THAT(answers_of(chat_template.render(kTwoRounds, false)),
              ElementsAre("A cat.<|im_end|>", "Black.<|endoftext|>"));
}

TEST(ChatTemplate, WhatIsCutAwayLeavesNoPlaceToLearn) {
  const ChatTemplate chat_template =
      own("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' }}{% set parts = m['content'].split('|') %}"
          "{{ parts[0].lstrip() + ' and ' + parts[-1] if parts | length > 1 else m['content'] }}{{ '<|im_end|>\n' }}"
          "{% endfor %}",
          "qwen2");
  const std::vector<Turn> turns{{Role::kUser, "Hello?"}, {Role::kAssistant, "|Yes."}};
  EXPECT_THAT(answers_of(chat_template.render(turns, false)), ElementsAre("Yes.<|im_end|>"));
}

TEST(ChatTemplate, AnEmptyAnswerIsItsEndOfTurn) {
  const std::vector<Turn> turns{{Role::kUser, "Hello?"}, {Role::kAssistant, ""}};
  EXPECT_THAT(answers_of(of_table("qwen2_vl").render(turns, false)), ElementsAre("<|im_end|>"));
  EXPECT_THAT(answers_of(of_table("smolvlm").render(turns, false)), ElementsAre(" <end_of_utterance>"));
}

TEST(ChatTemplate, AnImageTokenInAQuestionIsNoImage) {
  const std::vector<Turn> turns{{Role::kUser, "<image>\nWhat does <|image_pad|> mean?"}, {Role::kAssistant, "This."}};
  EXPECT_THAT(media_of(of_table("qwen2_vl").render(turns, false)), ElementsAre("<|image_pad|>"));
}

TEST(ChatTemplate, PutsAnEndBehindTheLastAnswerWhereThereIsNone) {
  const std::string jinja =
      "{% for m in messages %}{{ m['role'].upper() + ': ' }}{% for part in m['content'] %}"
      "{{ '<image>\n' if part['type'] == 'image' else part['text'] + ' ' }}{% endfor %}{% endfor %}"
      "{% if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif %}";
  const ChatTemplate chat_template = own(jinja, "llama2", {.end_tokens = {"</s>"}});
  EXPECT_THAT(answers_of(chat_template.render(kTwoRounds, false)), ElementsAre(" A cat.", " Black.</s>"));
  EXPECT_EQ(chat_template.render(kTwoRounds, false).text,
            "USER: <image>\nWhat is shown? ASSISTANT: A cat. USER: What colour? ASSISTANT: Black.</s>");
  EXPECT_THAT(chat_template.description(), HasSubstr("so </s> is put there"));
  EXPECT_THAT(refusal_of(jinja), AllOf(HasSubstr("chat_template.jinja"), HasSubstr("eos_token")));
}

TEST(ChatTemplate, AnEndThatOnlyTheLastAnswerLacksIsPutThere) {
  const ChatTemplate chat_template =
      own("{% for m in messages %}{{ m['role'] + ':' + m['content'] + ('' if loop.last else '</s>') }}{% endfor %}"
          "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}",
          "llama2", {.end_tokens = {"</s>"}});
  EXPECT_EQ(chat_template.render({kTwoRounds.data() + 2, 2}, false).text, "user:What colour?</s>assistant:Black.</s>");
}

TEST(ChatTemplate, SaysWhereAskingDiffersFromTraining) {
  const ChatTemplate chat_template =
      own("{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
          "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n<think>\n' }}{% endif %}",
          "qwen2");
  EXPECT_THAT(chat_template.description(), HasSubstr("assistant\\n<think>\\n"));
  EXPECT_THAT(chat_template.description(), Not(HasSubstr("system")));
  const ChatTemplate with_space = own(
      "{% for m in messages if m['role'] != 'system' %}{{ m['role'] + ': ' + m['content'] + '<|im_end|>' }}{% endfor %}"
      "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}",
      "qwen2");
  EXPECT_THAT(with_space.description(),
              AllOf(HasSubstr("leaves system texts out"), HasSubstr("ends within a token of the trained text")));
  EXPECT_THAT(answers_of(chat_template.render(kTwoRounds, false)), ElementsAre("A cat.<|im_end|>", "Black.<|im_end|>"));
}

TEST(ChatTemplate, RefusesTemplatesThatCannotBeUsed) {
  const TemplateSettings tokens{.end_tokens = {"</s>"}};
  EXPECT_THAT(refusal_of("{% for m in messages %}\n{{ m['content'] | shout }}{% endfor %}", tokens),
              AllOf(HasSubstr("chat_template.jinja:2"), HasSubstr("shout")));
  EXPECT_THAT(refusal_of("{% for m in messages %}{{ m['content'] }}", tokens), HasSubstr("chat_template.jinja:1"));
  EXPECT_THAT(refusal_of("{{ raise_exception('Only for tools') }}", tokens), HasSubstr("Only for tools"));
  EXPECT_THAT(refusal_of("Hello.", tokens), HasSubstr("does not write the answers"));
}

TEST(ChatTemplate, SaysWhatATemplateRaised) {
  const ChatTemplate chat_template =
      own("{% for m in messages %}{% if m['role'] == 'system' %}{{ raise_exception('System role not supported') }}"
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

TEST(ChatTemplate, TellsTheDateItWasGiven) {
  const ChatTemplate chat_template =
      own("{{ strftime_now('%d %b %Y') }}{% for m in messages %}{{ m['content'] + '</s>' }}{% endfor %}", "llama2",
          {.end_tokens = {"</s>"}, .now = "2026-11-22"});
  EXPECT_EQ(chat_template.render({kTwoRounds.data() + 2, 2}, false).text, "22 Nov 2026What colour?</s>Black.</s>");
}

}  // namespace
}  // namespace vlmtrain::text
