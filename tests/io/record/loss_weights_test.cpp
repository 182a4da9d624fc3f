#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/record/record_reader.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::io {
namespace {

using testing::AllOf;
using testing::HasSubstr;

Record read_weighted_messages(std::string_view messages, const RecordSettings& settings = {}) {
  return RecordReader(settings, "").read(RecordJson::parse(fmt::format(R"({{"messages": [{}]}})", messages)), "r");
}

/// Returns a record whose answer has these keys.
Record read_weighted_answer(std::string_view keys, const RecordSettings& settings = {}) {
  return read_weighted_messages(
      fmt::format(R"({{"role": "user", "content": "Q"}}, {{"role": "assistant", "content": "A", {}}})", keys),
      settings);
}

TEST(LossWeights, AreReadFromAnswers) {
  for (const auto& [keys, weight] :
       std::initializer_list<std::pair<const char*, float>>{{R"("weight": 0.5)", 0.5F},
                                                            {R"("loss": 0.25)", 0.25F},
                                                            {R"("loss_scale": 0.1)", 0.1F},
                                                            {R"("loss_weight": 1e-3)", 1e-3F},
                                                            {R"("weight": "0.50")", 0.5F},
                                                            {R"("weight": 0.5, "loss_scale": 0.5)", 0.5F},
                                                            {R"("weight": 0.5, "loss": true, "mask": false)", 0.5F},
                                                            {R"("weight": 0.5, "loss": false)", 0.0F},
                                                            {R"("weight": 0.5, "masked": 1)", 0.0F},
                                                            {R"("weight": 1e-6)", 1e-6F},
                                                            {R"("weight": 0)", 0.0F},
                                                            {R"("weight": 1)", 1.0F},
                                                            {R"("weight": null)", 1.0F},
                                                            {R"("id": 3)", 1.0F}}) {
    const Record record = read_weighted_answer(keys);
    ASSERT_EQ(record.problem, "") << keys;
    EXPECT_EQ(record.turns.at(1).loss_weight, weight) << keys;
    EXPECT_EQ(record.turns.at(0).loss_weight, 1.0F) << keys;
  }
}

TEST(LossWeights, OtherValuesAreProblems) {
  for (const std::string_view keys :
       {R"("weight": 2)", R"("weight": 1.0001)", R"("weight": -0.1)", R"("weight": "x")", R"("weight": "0.5x")",
        R"("weight": "nan")", R"("weight": "inf")", R"("loss_scale": [0.5, 1])", R"("loss": {"value": 0.5})"}) {
    EXPECT_THAT(read_weighted_answer(keys).problem,
                AllOf(HasSubstr("turn 2 has"), HasSubstr("not true, false or a number from 0 to 1"),
                      HasSubstr("data.ignore_keys")))
        << keys;
  }
  EXPECT_THAT(read_weighted_answer(R"("weight": 1e-7)").problem, HasSubstr("less than 1e-06"));
  EXPECT_THAT(read_weighted_answer(R"("masked": 0.5)").problem, HasSubstr("not true (1) or false (0)"));
  RecordJson record = RecordJson::parse(R"({"messages": [{"role": "user", "content": "Q"},
                                                         {"role": "assistant", "content": "A", "weight": 0}]})");
  record["messages"][1]["weight"] = std::numeric_limits<double>::quiet_NaN();  // of a Parquet file
  EXPECT_THAT(RecordReader({}, "").read(std::move(record), "r").problem,
              HasSubstr("not true, false or a number from 0 to 1"));
}

TEST(LossWeights, DifferentFractionsAreProblems) {
  const std::string_view keys = R"("weight": 0.5, "loss_scale": 0.25)";
  EXPECT_THAT(read_weighted_answer(keys).problem,
              AllOf(HasSubstr(R"("loss_scale": 0.25)"), HasSubstr(R"("weight": 0.5)"), HasSubstr("which differ")));
  const Record record = read_weighted_answer(keys, {.ignore_keys = {"weight"}});
  EXPECT_EQ(record.problem, "");
  EXPECT_EQ(record.turns.at(1).loss_weight, 0.25F);
}

TEST(LossWeights, CallsOfOneAnswerHaveOneWeight) {
  constexpr const char* kCalls =
      R"({{"role": "user", "content": "Q"}},
         {{"role": "tool_call", "content": "{{\"name\": \"a\", \"arguments\": {{}}}}", "loss_scale": 0.5}},
         {{"role": "tool_call", "content": "{{\"name\": \"b\", \"arguments\": {{}}}}", "loss_scale": {}}},
         {{"role": "tool", "content": "1"}}, {{"role": "assistant", "content": "A"}})";
  const Record record = read_weighted_messages(fmt::format(kCalls, 0.5));
  ASSERT_EQ(record.problem, "");
  EXPECT_EQ(record.turns.at(1).loss_weight, 0.5F);
  EXPECT_EQ(record.turns.at(3).loss_weight, 1.0F);
  EXPECT_THAT(read_weighted_messages(fmt::format(kCalls, 0.25)).problem,
              HasSubstr("turn 3 continues the tool calls before it, and their weights in the loss differ"));
}

TEST(LossWeights, WeightsOfRecordsAndBlocksAreProblems) {
  const auto read = [](const char* record) { return RecordReader({}, "").read(RecordJson::parse(record), "r"); };
  EXPECT_THAT(read(R"({"question": "Q", "answer": "A", "weight": 0.25})").problem,
              HasSubstr("write the weight into each answer"));
  EXPECT_THAT(read_weighted_messages(R"({"role": "user", "content": "Q"},
                               {"role": "assistant", "content": [{"type": "text", "text": "A", "weight": 0.5}]})")
                  .problem,
              HasSubstr("only whole answers have masks and weights"));
}

}  // namespace
}  // namespace vlmtrain::io
