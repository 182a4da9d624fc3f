#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "evaluation/metrics/boxes.h"
#include "evaluation/metrics/text_metrics.h"
#include "vlmtrain/evaluation/metrics.h"

namespace vlmtrain::evaluation {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::Optional;

/// Returns the value of one answer; nullopt if the metric does not apply.
std::optional<double> score_one(Metric metric, std::string_view expected, std::string_view prediction,
                                double numeric_tolerance = 0.05) {
  return score_answer_metrics(expected, prediction, {.metrics = {metric}, .numeric_tolerance = numeric_tolerance})
      .at(metric)
      .value();
}

TEST(MetricTest, EveryMetricHasANameAndAFunction) {
  MetricSettings settings;
  for (const auto& [name, metric] : get_metric_names()) {
    EXPECT_EQ(to_string(metric), name);
    settings.metrics.push_back(metric);
  }
  EXPECT_EQ(get_metric_values(score_answer_metrics("(A) [1, 2, 3, 4]", "A", settings)).size(),
            get_metric_names().size());
}

TEST(MetricTest, SumsOfPartsMergeToTheSumsOfAll) {
  const MetricSettings settings{.metrics = {Metric::kCer, Metric::kMultipleChoice}};
  MetricSums all, first_part, second_part;
  const auto add = [&](MetricSums& part, const char* expected, const char* prediction) {
    const MetricSums sums = score_answer_metrics(expected, prediction, settings);
    add_metric_sums(part, sums);
    add_metric_sums(all, sums);
  };
  add(first_part, "B", "B");
  add(first_part, "abcd", "abxd");
  add(second_part, "", "xy");
  add_metric_sums(first_part, second_part);
  EXPECT_EQ(get_metric_values(first_part), get_metric_values(all));
  EXPECT_THAT(all.at(Metric::kCer).value(), Optional(3.0 / 5)) << "insertions of an empty reference count";
  EXPECT_THAT(all.at(Metric::kMultipleChoice).value(), Optional(1.0)) << "one answer has a choice";
}

TEST(EditDistanceTest, CountsInsertionsDeletionsAndSubstitutions) {
  EXPECT_EQ(compute_edit_distance(U"", U""), 0);
  EXPECT_EQ(compute_edit_distance(U"kitten", U"sitting"), 3);
  EXPECT_EQ(compute_edit_distance(U"abc", U""), 3);
  EXPECT_EQ(compute_edit_distance(U"aaa", U"aaaa"), 1);
  EXPECT_EQ(compute_edit_distance(U"grüße", U"grusse"), 3);
}

TEST(ErrorRateTest, EmptyReferencesHaveNoRate) {
  EXPECT_EQ(score_one(Metric::kCer, "", "x"), std::nullopt);
  EXPECT_EQ(score_one(Metric::kWer, " \n", ""), std::nullopt);
  EXPECT_THAT(score_one(Metric::kWer, "a\tb  c", " a b d e"), Optional(2.0 / 3));
}

TEST(AnlsTest, SimilaritiesBelowHalfAreZero) {
  EXPECT_THAT(score_one(Metric::kAnls, "Hello  World", "hello world"), Optional(1.0));
  EXPECT_THAT(score_one(Metric::kAnls, "abcd", "abxy"), Optional(0.5));
  EXPECT_THAT(score_one(Metric::kAnls, "abcd", "axyz"), Optional(0.0));
  EXPECT_THAT(score_one(Metric::kAnls, "", ""), Optional(1.0));
}

TEST(RelaxedAccuracyTest, NumbersMayDifferByFivePercent) {
  const auto score = [](const char* expected, const char* prediction) {
    return *score_one(Metric::kRelaxedAccuracy, expected, prediction);
  };
  EXPECT_EQ(score("100", "105"), 1);
  EXPECT_EQ(score("100", "106"), 0);
  EXPECT_EQ(score("-2", "2"), 0);
  EXPECT_EQ(score("50%", "0.51"), 1) << "a percent sign divides by 100";
  EXPECT_EQ(score("0", "0.0"), 0) << "0 is compared as text";
  EXPECT_EQ(score("Yes", "yes"), 1);
  EXPECT_EQ(score("12 cm", "12"), 0);
}

TEST(NumbersTest, PythonFloats) {
  EXPECT_THAT(parse_python_float(" 1_000.5e-1\n"), Optional(100.05));
  EXPECT_THAT(parse_python_float("+.5"), Optional(0.5));
  EXPECT_THAT(parse_python_float("5."), Optional(5.0));
  EXPECT_THAT(parse_python_float("-Infinity"), Optional(-HUGE_VAL));
  EXPECT_THAT(parse_python_float("1e999"), Optional(HUGE_VAL));
  EXPECT_TRUE(std::isnan(parse_python_float("nan").value()));
  for (const char* text : {"", ".", "1,000", "1__0", "_1", "1_", "1e", "e5", "--1", "0x10", "1 2", "+", "1e5.0"})
    EXPECT_EQ(parse_python_float(text), std::nullopt) << text;
}

TEST(NumbersTest, TheLastNumberOfAText) {
  EXPECT_THAT(find_last_number("3 + 4 = 7 apples"), Optional(7.0));
  EXPECT_THAT(find_last_number("$1,234,567.50."), Optional(1234567.5));
  EXPECT_THAT(find_last_number("2010-2015"), Optional(2015.0)) << "a dash";
  EXPECT_THAT(find_last_number("x=-3e2%"), Optional(-300.0));
  EXPECT_THAT(find_last_number("1,2345"), Optional(2345.0));
  EXPECT_THAT(find_last_number("1,234,5678"), Optional(5678.0));
  EXPECT_EQ(find_last_number("T2, v.1 or none"), std::nullopt);
}

TEST(NumericTest, ToleranceIsRelativeAndAbsoluteForZero) {
  EXPECT_THAT(score_one(Metric::kNumeric, "about 200 mg", "It is 210."), Optional(1.0));
  EXPECT_THAT(score_one(Metric::kNumeric, "200", "211"), Optional(0.0));
  EXPECT_THAT(score_one(Metric::kNumeric, "0", "0.04"), Optional(1.0));
  EXPECT_THAT(score_one(Metric::kNumeric, "7", "7.001", /*numeric_tolerance=*/0), Optional(0.0));
  EXPECT_THAT(score_one(Metric::kNumeric, "7", "seven"), Optional(0.0));
  EXPECT_EQ(score_one(Metric::kNumeric, "seven", "7"), std::nullopt);
}

TEST(MultipleChoiceTest, FindsTheLetter) {
  for (const char* answer :
       {"B", "(B)", "B.", "Answer: B", "B) text", "B. a Cat", "The answer is B", " B \n", "**(B)**"})
    EXPECT_THAT(find_selected_choice(answer), Optional('B')) << answer;
  EXPECT_EQ(find_selected_choice("none"), std::nullopt);
  EXPECT_EQ(find_selected_choice(" . "), std::nullopt);
  for (const char* expected : {"C", "(C)", "C. a cat", "C: x"})
    EXPECT_THAT(score_one(Metric::kMultipleChoice, expected, "The answer is (C)."), Optional(1.0)) << expected;
  EXPECT_THAT(score_one(Metric::kMultipleChoice, "C", "D"), Optional(0.0));
  for (const char* expected : {"Cat", "A cat", "", "yes", "c"})
    EXPECT_EQ(score_one(Metric::kMultipleChoice, expected, "C"), std::nullopt) << expected;
}

TEST(BoxTest, ReadsEveryFormat) {
  EXPECT_THAT(parse_boxes("[1, 2,3.5 , 4]"), ElementsAre(Box{1, 2, 3.5, 4}));
  EXPECT_THAT(parse_boxes(R"([{"bbox_2d": [1, 2, 3, 4], "label": "cat"}, {"bbox_2d": [5, 6, 7, 8]}])"),
              ElementsAre(Box{1, 2, 3, 4}, Box{5, 6, 7, 8}));
  EXPECT_THAT(parse_boxes("<|object_ref_start|>cat<|object_ref_end|><|box_start|>(1,2),(3,4)<|box_end|>"),
              ElementsAre(Box{1, 2, 3, 4}));
  EXPECT_THAT(parse_boxes("<ref>cat</ref><box>[[1, 2, 3, 4], [5, 6, 7, 8]]</box>"),
              ElementsAre(Box{1, 2, 3, 4}, Box{5, 6, 7, 8}));
  EXPECT_THAT(parse_boxes("<loc0002><loc0001><loc0004><loc1003> cat"), ElementsAre(Box{1, 2, 1003, 4}));
  for (const char* text :
       {"", "[1, 2, 3]", "[1, 2, 3, 4, 5]", "(1,2)", "(1,2),(3", "<loc0001><loc0002><loc0003>", "[,]"})
    EXPECT_THAT(parse_boxes(text), IsEmpty()) << text;
}

TEST(BoxMetricTest, MatchesBoxesByIou) {
  const auto score = [](Metric metric, const char* prediction) {
    return score_one(metric, "[[0, 0, 10, 10], [20, 0, 30, 10]]", prediction).value();
  };
  EXPECT_EQ(score(Metric::kBoxIou, "[[20, 0, 30, 10], [0, 0, 10, 10]]"), 1) << "in any order";
  EXPECT_EQ(score(Metric::kBoxIou, "[0, 0, 10, 5]"), 0.25) << "a missing box counts as 0";
  EXPECT_EQ(score(Metric::kBoxAccuracy, "[0, 0, 10, 5]"), 0.5) << "an IoU of 0.5 is correct";
  EXPECT_EQ(score(Metric::kBoxIou, "[0, 0, 10, 5] [0, 0, 10, 10]"), 0.5) << "each box has one match, the best";
  EXPECT_EQ(score(Metric::kBoxIou, "[10, 10, 0, 0]"), 0) << "corners in another order";
  EXPECT_EQ(score(Metric::kBoxIou, "none"), 0);
  EXPECT_EQ(score_one(Metric::kBoxIou, "none", "[0, 0, 1, 1]"), std::nullopt);
}

}  // namespace
}  // namespace vlmtrain::evaluation
