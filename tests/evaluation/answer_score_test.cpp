#include <gtest/gtest.h>

#include "vlmtrain/evaluation/scores.h"

namespace vlmtrain::evaluation {
namespace {

io::Record make_record(std::string answer_type, std::string answer) {
  io::Record record;
  record.answer_type = std::move(answer_type);
  record.turns = {{io::Role::kUser, "Is it?"}, {io::Role::kAssistant, std::move(answer)}};
  return record;
}

TEST(NormalizeAnswerTest, NormalizesPunctuationCaseAndNumbers) {
  EXPECT_EQ(normalize_answer(" Yes. "), "yes");
  EXPECT_EQ(normalize_answer("The left lobe, (upper)/lower"), "left lobe upper lower");
  EXPECT_EQ(normalize_answer("T2-weighted\nimage"), "t2 weighted image");
  EXPECT_EQ(normalize_answer("3.5 cm, 1,000 of ten; None"), "3.5 cm 1000 of 10 0");
  EXPECT_EQ(normalize_answer("There's zero. Grüße"), "theres 0 grüße");
  EXPECT_EQ(normalize_answer(" . the "), "");
}

TEST(NormalizeAnswerTest, TheChoiceAIsNotAnArticle) {
  EXPECT_EQ(normalize_answer("A"), "a");
  EXPECT_EQ(normalize_answer(" (a). "), "a");
  EXPECT_EQ(normalize_answer("a cat"), "cat");
}

TEST(AnswerTypeTest, UsesTheRecordOrYesAndNo) {
  EXPECT_EQ(determine_answer_type(make_record("CLOSED", "left")), AnswerType::kClosed);
  EXPECT_EQ(determine_answer_type(make_record("Open", "yes")), AnswerType::kOpen);
  EXPECT_EQ(determine_answer_type(make_record("", "No.")), AnswerType::kClosed);
  EXPECT_EQ(determine_answer_type(make_record("", "No fluid")), AnswerType::kOpen);
  EXPECT_EQ(determine_answer_type(make_record("other", " YES ")), AnswerType::kClosed);
}

TEST(ClosedQuestionScore, AccuracyIsTheShareOfEqualAnswers) {
  ClosedQuestionScore score;
  EXPECT_EQ(score.accuracy(), 0);
  score.add("Yes", "yes.");
  score.add("no", "No");
  score.add("no", "yes");
  score.add("no", "no, there is none");
  EXPECT_EQ(score.num_samples, 4);
  EXPECT_EQ(score.accuracy(), 0.5);
}

TEST(OpenQuestionScore, CountsWordsLikeLlavaMed) {
  OpenQuestionScore score;
  EXPECT_EQ(score.recall(), 0);
  score.add("the right lung", "Right lung");  // recall 1, precision 1
  EXPECT_EQ(score.exact_match(), 1);
  score.add("right lower lobe", "the lower lower part");  // two common words: 2 / (2 + 2), 2 / (2 + 1)
  score.add("spleen", "");
  score.add("spleen", "liver");
  EXPECT_EQ(score.num_samples, 4);
  EXPECT_DOUBLE_EQ(score.recall(), (1 + 0.5) / 4);
  EXPECT_DOUBLE_EQ(score.precision(), (1 + 2.0 / 3) / 4);
  EXPECT_DOUBLE_EQ(score.f1(), (1 + 2 * 0.5 * (2.0 / 3) / (0.5 + 2.0 / 3)) / 4);
  EXPECT_EQ(score.exact_match(), 0.25);
}

}  // namespace
}  // namespace vlmtrain::evaluation
