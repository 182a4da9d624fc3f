#include "models/processing/expand_images.h"

#include <gtest/gtest.h>

#include "vlmtrain/base/error.h"

namespace vlmtrain::models {
namespace {

/// What the spans of `chat` cover.
std::vector<std::string> answers_of(const text::RenderedChat& chat) {
  std::vector<std::string> answers;
  for (const auto& span : chat.answers) answers.push_back(chat.text.substr(span.begin, span.end - span.begin));
  return answers;
}

/// With an image at each "<i>".
text::RenderedChat chat_of(const std::string& text, const std::vector<std::string>& answers) {
  text::RenderedChat chat{.text = text};
  for (const auto& answer : answers) chat.answers.push_back({text.find(answer), text.find(answer) + answer.size()});
  for (size_t at = text.find("<i>"); at != std::string::npos; at = text.find("<i>", at + 1)) {
    chat.media.push_back({{at, at + 3}});
  }
  return chat;
}

TEST(ExpandImages, PutsEachExpansionInItsPlaceAndMovesTheAnswers) {
  const auto chat = chat_of("Q:<i>one <i>A: first. Q:<i>A: second.", {" first.", " second."});
  const std::vector<std::string> expansions{"[11111111]", "", "[3]"};
  const auto expanded = expand_images(chat, expansions);
  EXPECT_EQ(expanded.text, "Q:[11111111]one A: first. Q:[3]A: second.");
  EXPECT_EQ(answers_of(expanded), (std::vector<std::string>{" first.", " second."}));
}

TEST(ExpandImages, AnImageInsideAnAnswerWidensIt) {
  const auto expanded =
      expand_images(chat_of("Q: draw A: here: <i>!", {" here: <i>!"}), std::vector<std::string>{"[pixels]"});
  EXPECT_EQ(answers_of(expanded), (std::vector<std::string>{" here: [pixels]!"}));
}

TEST(ExpandImages, APlaceWithoutAnExpansionStaysAsItIs) {
  const auto expanded = expand_images(chat_of("<i>a<i>A: b", {" b"}), std::vector<std::string>{"<i><i>"});
  EXPECT_EQ(expanded.text, "<i><i>a<i>A: b");
  EXPECT_EQ(answers_of(expanded), (std::vector<std::string>{" b"}));
}

TEST(ExpandImages, MoreImagesThanPlacesIsABug) {
  EXPECT_THROW(expand_images(chat_of("<i>", {}), std::vector<std::string>{"x", "y"}), InternalError);
}

}  // namespace
}  // namespace vlmtrain::models
