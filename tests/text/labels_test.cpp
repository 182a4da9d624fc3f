#include "vlmtrain/text/labels.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/test_data.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::text {
namespace {

using testing::ElementsAre;

TEST(Labels, TakesTokensThatBeginInAnAnswer) {
  const Encoding encoding{{10, 11, 12, 13, 14, 15}, {0, 2, 5, 5, 8, 9}};
  EXPECT_THAT(answer_tokens(encoding, "abcdefghij", std::vector<Span>{{2, 5}, {8, 9}}), ElementsAre(0, 1, 0, 0, 1, 0));
  EXPECT_THAT(answer_tokens(encoding, "abcdefghij", std::vector<Span>{{3, 8}}), ElementsAre(0, 0, 1, 1, 0, 0));
  EXPECT_THAT(answer_tokens(encoding, "abcdefghij", {}), ElementsAre(0, 0, 0, 0, 0, 0));
}

TEST(Labels, ATokenThatTakesInOnlyWhiteSpaceBeforeAnAnswerIsTheAnswers) {
  // "A:" " Yes" "." where the answer is "Yes."; and "A" ": Yes".
  EXPECT_THAT(answer_tokens({{1, 2, 3}, {0, 2, 6}}, "A: Yes.", std::vector<Span>{{3, 7}}), ElementsAre(0, 1, 1));
  EXPECT_THAT(answer_tokens({{1, 2}, {0, 1}}, "A: Yes", std::vector<Span>{{3, 6}}), ElementsAre(0, 0));
  // White space that is a token of its own is the prompt's.
  EXPECT_THAT(answer_tokens({{1, 2, 3}, {0, 2, 3}}, "A: Yes", std::vector<Span>{{3, 6}}), ElementsAre(0, 0, 1));
}

TEST(Labels, RefusesSpansThatOverlap) {
  EXPECT_THROW(answer_tokens({}, "", std::vector<Span>{{0, 5}, {4, 6}}), InternalError);
}

/// What the labelled tokens say, answer after answer.
std::string labelled_text(const std::string& kind, const std::string& chat_template, const std::vector<Turn>& turns) {
  const Tokenizer tokenizer = Tokenizer::from_file(data_path(kind + ".tokenizer.json"));
  const ChatTemplate words(template_by_name(chat_template), {}, tokenizer);
  const RenderedChat chat = words.render(turns, false);
  const Encoding encoding = tokenizer.encode(chat.text, true);
  const std::vector<char> is_answer = answer_tokens(encoding, chat.text, chat.answers);
  std::vector<int64_t> labelled;
  for (size_t i = 0; i < is_answer.size(); ++i) {
    if (is_answer[i] != 0) labelled.push_back(encoding.ids[i]);
  }
  return tokenizer.decode(labelled, false);
}

TEST(Labels, OfAChatAreItsAnswers) {
  const std::vector<Turn> turns{{Role::kUser, "<image>\nWhat is shown?"},
                                {Role::kAssistant, "A cat. 🐈 e\u0301"},
                                {Role::kUser, "Größe?"},
                                {Role::kAssistant, "12 cm"}};
  EXPECT_EQ(labelled_text("smollm2", "smolvlm", turns), " A cat. 🐈 e\u0301<end_of_utterance> 12 cm<end_of_utterance>");
  // Composed by NFC, which shortens the text before the second answer.
  EXPECT_EQ(labelled_text("qwen2", "qwen2_vl", turns), "A cat. 🐈 \u00e9<|im_end|>12 cm<|im_end|>");
  // The decoder strips the first space.
  EXPECT_EQ(labelled_text("llama2", "llava_v1", turns), "A cat. 🐈 e\u0301</s> 12 cm</s>");
}

}  // namespace
}  // namespace vlmtrain::text
