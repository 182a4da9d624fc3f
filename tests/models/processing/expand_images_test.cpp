#include <gtest/gtest.h>

#include "models/processing/chat_encoder.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models {
namespace {

/// Returns the texts of the spans of `chat`.
std::vector<std::string> get_answers(const text::RenderedChat& chat) {
  std::vector<std::string> answers;
  for (const auto& span : chat.answers) answers.push_back(chat.text.substr(span.begin, span.end - span.begin));
  return answers;
}

/// Returns a chat with an image at each "<i>".
text::RenderedChat make_chat(const std::string& text, const std::vector<std::string>& answers) {
  text::RenderedChat chat{.text = text};
  for (const auto& answer : answers) chat.answers.push_back({text.find(answer), text.find(answer) + answer.size()});
  for (size_t position = text.find("<i>"); position != std::string::npos; position = text.find("<i>", position + 1)) {
    chat.media.push_back({{position, position + 3}});
  }
  return chat;
}

TEST(ExpandImages, ReplacesMarksAndMovesAnswers) {
  const auto chat = make_chat("Q:<i>one <i>A: first. Q:<i>A: second.", {" first.", " second."});
  const std::vector<std::string> expansions{"[11111111]", "", "[3]"};
  const auto expanded = expand_media(chat, expansions);
  EXPECT_EQ(expanded.text, "Q:[11111111]one A: first. Q:[3]A: second.");
  EXPECT_EQ(get_answers(expanded), (std::vector<std::string>{" first.", " second."}));
}

TEST(ExpandImages, ImageInsideAnAnswerExtendsIt) {
  const auto expanded =
      expand_media(make_chat("Q: draw A: here: <i>!", {" here: <i>!"}), std::vector<std::string>{"[pixels]"});
  EXPECT_EQ(get_answers(expanded), (std::vector<std::string>{" here: [pixels]!"}));
}

TEST(ExpandImages, MarkWithoutExpansionIsUnchanged) {
  const auto expanded = expand_media(make_chat("<i>a<i>A: b", {" b"}), std::vector<std::string>{"<i><i>"});
  EXPECT_EQ(expanded.text, "<i><i>a<i>A: b");
  EXPECT_EQ(get_answers(expanded), (std::vector<std::string>{" b"}));
}

TEST(ExpandImages, MoreImagesThanMarksIsABug) {
  EXPECT_THROW(expand_media(make_chat("<i>", {}), std::vector<std::string>{"x", "y"}), InternalError);
}

}  // namespace
}  // namespace vlmtrain::models
