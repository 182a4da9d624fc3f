#include "vlmtrain/text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "text/test_data.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::text {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

const std::vector<Turn> kTwoRounds{{Role::kUser, "<image>\nWhat is shown?"},
                                   {Role::kAssistant, "A cat."},
                                   {Role::kUser, "What colour?"},
                                   {Role::kAssistant, "Black."}};

Role role_of(const std::string& name) {
  if (name == "system") return Role::kSystem;
  return name == "user" ? Role::kUser : Role::kAssistant;
}

std::vector<std::string> answers_of(const RenderedChat& chat) {
  std::vector<std::string> answers;
  for (const Span& span : chat.answers) answers.push_back(chat.text.substr(span.begin, span.end - span.begin));
  return answers;
}

TEST(ChatTemplate, RendersWhatJinjaRenders) {
  std::set<std::string_view> seen;
  for (const auto& wanted : read_data("chats.golden.json")) {
    const ChatTemplate& chat_template = ChatTemplate::find(wanted["template"].get<std::string>());
    std::vector<Turn> turns;
    for (const auto& turn : wanted["turns"]) turns.push_back({role_of(turn["role"]), turn["text"]});
    EXPECT_EQ(chat_template.render(turns, wanted["add_generation_prompt"]).text, wanted["rendered"].get<std::string>())
        << chat_template.name();
    seen.insert(chat_template.name());
  }
  EXPECT_EQ(seen.size(), ChatTemplate::names().size());
}

TEST(ChatTemplate, AnswersHoldWhatTheModelProduces) {
  const auto answers = [](const char* name) { return answers_of(ChatTemplate::find(name).render(kTwoRounds, false)); };
  EXPECT_THAT(answers("smolvlm"), ElementsAre(" A cat.<end_of_utterance>", " Black.<end_of_utterance>"));
  EXPECT_THAT(answers("qwen2_vl"), ElementsAre("A cat.<|im_end|>", "Black.<|im_end|>"));
  EXPECT_THAT(answers("chatml"), ElementsAre("A cat.<|im_end|>", "Black.<|im_end|>"));
  EXPECT_THAT(answers("llava_1_5"), ElementsAre(" A cat.", " Black."));
  EXPECT_THAT(answers("llava_v1"), ElementsAre(" A cat.</s>", " Black.</s>"));
  EXPECT_THAT(answers("mistral_instruct"), ElementsAre(" A cat. </s>", " Black. </s>"));
}

TEST(ChatTemplate, AnAnswerFollowsTheGenerationPrompt) {
  for (const std::string_view name : ChatTemplate::names()) {
    const ChatTemplate& chat_template = ChatTemplate::find(name);
    const RenderedChat whole = chat_template.render(kTwoRounds, false);
    const RenderedChat prompt = chat_template.render({kTwoRounds.data(), 3}, true);
    EXPECT_EQ(whole.text.substr(0, whole.answers[1].begin), prompt.text) << name;
    const std::string answer = answers_of(whole)[1];
    EXPECT_TRUE(answer.ends_with(chat_template.end_of_turn())) << name;
  }
}

TEST(ChatTemplate, KeepsAllImages) {
  const std::vector<Turn> turns{{Role::kUser, "<image>\n<image>\nCompare them with <image>."},
                                {Role::kAssistant, "No."}};
  for (const std::string_view name : ChatTemplate::names()) {
    const ChatTemplate& chat_template = ChatTemplate::find(name);
    const std::string text = chat_template.render(turns, false).text;
    int images = 0;
    for (size_t at = text.find(chat_template.image_text()); at != std::string::npos;
         at = text.find(chat_template.image_text(), at + 1)) {
      ++images;
    }
    EXPECT_EQ(images, 3) << name;
  }
}

TEST(ChatTemplate, DropsTheLineBreakAfterAnOpeningImageOnly) {
  const auto smolvlm = [](const char* text) {
    return ChatTemplate::find("smolvlm").render(std::vector<Turn>{{Role::kUser, text}}, false).text;
  };
  EXPECT_EQ(smolvlm("<image>\nWhat?"), "<|im_start|>User:<image>What?<end_of_utterance>\n");
  EXPECT_EQ(smolvlm("<image>\r\nWhat?"), "<|im_start|>User:<image>What?<end_of_utterance>\n");
  EXPECT_EQ(smolvlm("<image>\n\nWhat?"), "<|im_start|>User:<image>\nWhat?<end_of_utterance>\n");
  EXPECT_EQ(smolvlm("What?\n<image>\n"), "<|im_start|>User: What?\n<image>\n<end_of_utterance>\n");
}

TEST(ChatTemplate, NamesTheKnownTemplates) {
  try {
    ChatTemplate::find("smolvml");
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    EXPECT_THAT(error.what(), HasSubstr("\"smolvml\""));
    EXPECT_THAT(
        error.what(),
        HasSubstr("chatml, llava_1_5, llava_qwen, llava_v1, mistral_instruct, question_answer, qwen2_vl, smolvlm"));
  }
}

TEST(ChatTemplate, RefusesConversationsItHasNoPlaceFor) {
  EXPECT_THROW(ChatTemplate::find("smolvlm").render({}, false), UserError);
  const std::vector<Turn> late_system{
      {Role::kUser, "a"}, {Role::kAssistant, "b"}, {Role::kSystem, "c"}, {Role::kUser, "d"}};
  EXPECT_THROW(ChatTemplate::find("mistral_instruct").render(late_system, false), UserError);
  EXPECT_NO_THROW(ChatTemplate::find("smolvlm").render(late_system, false));
}

}  // namespace
}  // namespace vlmtrain::text
