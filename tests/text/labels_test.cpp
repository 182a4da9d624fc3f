#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "text/test_data.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::text {
namespace {

using testing::ElementsAre;

TEST(Labels, LabelsTokensThatBeginInAnAnswer) {
  const Encoding encoding{{10, 11, 12, 13, 14, 15}, {0, 2, 5, 5, 8, 9}};
  EXPECT_THAT(compute_label_mask(encoding, "abcdefghij", std::vector<TextSpan>{{2, 5}, {8, 9}}),
              ElementsAre(0, 1, 0, 0, 1, 0));
  EXPECT_THAT(compute_label_mask(encoding, "abcdefghij", std::vector<TextSpan>{{3, 8}}), ElementsAre(0, 0, 1, 1, 0, 0));
  EXPECT_THAT(compute_label_mask(encoding, "abcdefghij", {}), ElementsAre(0, 0, 0, 0, 0, 0));
}

TEST(Labels, TokenThatCrossesOnlyWhiteSpaceBeforeAnAnswerIsALabel) {
  // The tokens are "A:" " Yes" "." with the answer "Yes."; and "A" ": Yes".
  EXPECT_THAT(compute_label_mask({{1, 2, 3}, {0, 2, 6}}, "A: Yes.", std::vector<TextSpan>{{3, 7}}),
              ElementsAre(0, 1, 1));
  EXPECT_THAT(compute_label_mask({{1, 2}, {0, 1}}, "A: Yes", std::vector<TextSpan>{{3, 6}}), ElementsAre(0, 0));
  // A token of white space alone belongs to the prompt.
  EXPECT_THAT(compute_label_mask({{1, 2, 3}, {0, 2, 3}}, "A: Yes", std::vector<TextSpan>{{3, 6}}),
              ElementsAre(0, 0, 1));
}

TEST(Labels, RejectsOverlappingSpans) {
  EXPECT_THROW(compute_label_mask({}, "", std::vector<TextSpan>{{0, 5}, {4, 6}}), InternalError);
}

/// Returns the text of the label tokens of a chat.
std::string decode_labels(const std::string& tokenizer_name, const std::string& template_name,
                          const std::vector<Turn>& turns) {
  const Tokenizer tokenizer = Tokenizer::from_file(get_data_path(tokenizer_name + ".tokenizer.json"));
  const ChatTemplate chat_template(get_builtin_template(template_name), {}, tokenizer);
  const RenderedChat chat = chat_template.render(turns, false);
  const Encoding encoding = tokenizer.encode(chat.text, true);
  const std::vector<char> label_mask = compute_label_mask(encoding, chat.text, chat.answers);
  std::vector<int64_t> label_ids;
  for (size_t i = 0; i < label_mask.size(); ++i) {
    if (label_mask[i] != 0) label_ids.push_back(encoding.ids[i]);
  }
  return tokenizer.decode(label_ids, false);
}

TEST(Labels, LabelsOfAChatAreItsAnswers) {
  const std::vector<Turn> turns{{Role::kUser, "<image>\nWhat is shown?"},
                                {Role::kAssistant, "A cat. 🐈 e\u0301"},
                                {Role::kUser, "Größe?"},
                                {Role::kAssistant, "12 cm"}};
  EXPECT_EQ(decode_labels("smollm2", "smolvlm", turns), " A cat. 🐈 e\u0301<end_of_utterance> 12 cm<end_of_utterance>");
  // NFC composes a character, which shortens the text before the second answer.
  EXPECT_EQ(decode_labels("qwen2", "qwen2_vl", turns), "A cat. 🐈 \u00e9<|im_end|>12 cm<|im_end|>");
  // The decoder strips the first space.
  EXPECT_EQ(decode_labels("llama2", "llava_v1", turns), "A cat. 🐈 e\u0301</s> 12 cm</s>");
}

}  // namespace
}  // namespace vlmtrain::text
