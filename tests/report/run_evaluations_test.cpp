#include <sys/stat.h>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <ctime>
#include <limits>

#include "report/run_example.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/report/run_report.h"

namespace vlmtrain::report {
namespace {

TEST(RunEvaluationsTest, EvaluationsArePointsAtTheirSteps) {
  const RunFolder run;
  run.append_evaluated_steps(100, 10);
  const auto data = render_and_parse(run);
  const auto& evaluations = data["evaluations"];
  EXPECT_EQ(evaluations["steps"].dump(), "[10,20,30,40,50,60,70,80,90,100]");
  EXPECT_EQ(evaluations["loss"].dump(), "[1.1,1.0,0.9,0.8,0.7,0.8,0.9,1.0,1.1,1.2]");
  EXPECT_EQ(evaluations["exact_match"][9], 0.5);
  EXPECT_EQ(evaluations["best"].dump(), R"({"exact_match":0.25,"loss":0.7,"step":50})");
  EXPECT_EQ(evaluations["newest"]["step"], 100);
  EXPECT_EQ(evaluations["newest"]["batch_size"], 16);
  EXPECT_EQ(evaluations["count"], 10);
  EXPECT_EQ(evaluations["seconds"], 125);
  ASSERT_EQ(evaluations["tasks"].size(), 2u);
  EXPECT_EQ(evaluations["tasks"][0]["name"], "read") << "it has the most label tokens";
  EXPECT_EQ(evaluations["tasks"][0]["loss"][4], 1.5);
  EXPECT_TRUE(evaluations["tasks"][0]["exact_match"][4].is_null());
  EXPECT_EQ(evaluations["tasks"][1]["newest_exact_match"], 1);
}

TEST(RunEvaluationsTest, MetricsOfAnswersAreThoseOfTheNewestEvaluation) {
  const RunFolder run;
  run.write("metrics.jsonl",
            R"({"step":1,"evaluation":{"loss":2,"metrics":{"anls":0.25},"tasks":{}}})"
            "\n"
            R"({"step":2,"evaluation":{"loss":1,"metrics":{"anls":0.5,"wer":null,"cer":"x"},)"
            R"("tasks":{"read":{"loss":1,"metrics":{"anls":0.75}},"other":{"loss":1},"invalid":{"metrics":3}}}})"
            "\n");
  EXPECT_EQ(render_and_parse(run)["evaluations"]["metrics"].dump(),
            R"([{"name":"read","values":{"anls":0.75}},{"values":{"anls":0.5}}])");
  run.append("metrics.jsonl", R"({"step":3,"evaluation":{"loss":1}})"
                              "\n");
  EXPECT_FALSE(render_and_parse(run)["evaluations"].contains("metrics")) << "eval.metrics was removed";
}

TEST(RunEvaluationsTest, ARunWithoutEvaluationsReportsNone) {
  const RunFolder run;
  run.append_steps(1, 10, 10);
  EXPECT_TRUE(render_and_parse(run)["evaluations"].is_null()) << "as from a version without evaluations";
}

TEST(RunEvaluationsTest, ThousandsOfEvaluationsKeepTheBestAndTheNewest) {
  const RunFolder run;
  constexpr int64_t kEvaluations = 9998;
  constexpr int64_t kBest = 4321;
  std::string lines;
  for (int64_t step = 1; step <= kEvaluations; ++step) {
    lines += fmt::format(
        R"({{"step":{0},"evaluation":{{"loss":{1},"is_best":{2},"tasks":{{"<task {0}>":{{"loss":1,"label_tokens":1}}}}}}}})",
        step, step == kBest ? 0.25 : 3.0, step == kBest || step == 1);
    lines += "\n";
  }
  run.write("metrics.jsonl", lines);
  const std::string page = render_run_report(run.path());
  EXPECT_LT(page.size(), 500'000u);
  const auto evaluations = parse_page_data(page)["evaluations"];
  EXPECT_EQ(evaluations["count"], kEvaluations);
  const auto steps = evaluations["steps"].get<std::vector<int64_t>>();
  EXPECT_GT(steps.size(), 500u);
  EXPECT_LE(steps.size(), 1026u);
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
  EXPECT_EQ(steps.front(), 1);
  EXPECT_EQ(steps.back(), kEvaluations);
  const auto best = std::find(steps.begin(), steps.end(), kBest);
  ASSERT_NE(best, steps.end());
  EXPECT_EQ(evaluations["loss"][static_cast<size_t>(best - steps.begin())], 0.25);
  EXPECT_EQ(evaluations["tasks"].size(), 200u) << "names of tasks come from outside";
}

TEST(RunEvaluationsTest, AnswersAreGroupedBySample) {
  const RunFolder run;
  run.append_steps(1, 3, 3);
  for (const int64_t step : {0, 1, 2, 3, 4, 5}) {
    for (const char* id : {"a", "b"}) {
      run.append_prediction(
          {.step = step,
           .id = id,
           .task = "count",
           .question = "How many?",
           .expected_answer = "2",
           .answer = std::to_string(step),
           .thumbnail_uris = {"data:image/jpeg;base64,AAAA", "http://elsewhere/x.png", "data:text/html,x"}});
    }
  }
  const auto predictions = render_and_parse(run)["predictions"];
  ASSERT_EQ(predictions["samples"].size(), 2u);
  EXPECT_EQ(predictions["samples"][0]["id"], "a");
  EXPECT_EQ(predictions["samples"][0]["images"].dump(), R"(["data:image/jpeg;base64,AAAA"])") << "nothing is loaded";
  std::vector<int64_t> steps;
  for (const auto& answer : predictions["samples"][0]["answers"]) steps.push_back(answer["step"]);
  EXPECT_THAT(steps, testing::ElementsAre(0, 3, 4, 5)) << "the first and the newest";
}

TEST(RunEvaluationsTest, MasksBelongToTheirAnswers) {
  const RunFolder run;
  run.append_steps(1, 2, 2);
  const std::string image_uri = "data:image/jpeg;base64,AAAA";
  run.append_prediction({.step = 1, .id = "a", .answer = "none"});
  Prediction prediction{.step = 2, .id = "a", .answer = "<SEG>"};
  prediction.masks = {{.structure = std::string(5000, 'x'), .dice = 0.5, .overlay_uri = "http://elsewhere/x.png"},
                      {.overlay_uri = "data:image/jpeg;base64," + std::string(300'000, 'A')}};
  for (int i = 0; i < 10; ++i) {
    prediction.masks.push_back({.structure = std::string(5000, 'x'), .dice = 0.5, .overlay_uri = image_uri});
  }
  run.append_prediction(prediction);
  run.append("predictions.jsonl", R"({"step":3,"id":"a","masks":7})"
                                  "\n"
                                  R"({"step":4,"id":"a","masks":[1,{}]})"
                                  "\n");
  const auto answers = render_and_parse(run)["predictions"]["samples"][0]["answers"];
  ASSERT_EQ(answers.size(), 4u);
  EXPECT_FALSE(answers[0].contains("masks"));
  ASSERT_EQ(answers[1]["masks"].size(), 6u) << "as many as images of a sample";
  EXPECT_EQ(answers[1]["masks"][0]["overlay"], image_uri) << "nothing is loaded, nothing is huge";
  EXPECT_EQ(answers[1]["masks"][0]["dice"], 0.5);
  EXPECT_LT(answers[1]["masks"][0]["structure"].get<std::string>().size(), 2010u);
  EXPECT_FALSE(answers[3].contains("masks"));
}

TEST(RunEvaluationsTest, MaskScoresAreCurvesAndATable) {
  const RunFolder run;
  for (int64_t step = 1; step <= 3; ++step) {
    StepMetrics metrics = RunFolder::example_step(step, 3);
    metrics.mask_learning_rate = 1e-3;
    metrics.loss_components = LossComponents{.text = 1, .bce = 0.5, .dice = 0.25 * static_cast<double>(step)};
    if (step != 2) {
      metrics.evaluation = RunFolder::example_evaluation(0.5);
      metrics.evaluation->is_best = step == 1;
      metrics.evaluation->total.masks = MaskMetrics{.masks = 9, .dice = 0.25 * static_cast<double>(step), .iou = 0.2};
      metrics.evaluation->mask_metrics_by_structure[step == 1 ? "bone" : "</script>liver"] = {.masks = 1, .dice = 0.5};
      metrics.evaluation->mask_metrics_by_structure["kidney"] = {
          .masks = 8, .dice = 0.125 * static_cast<double>(step), .iou = 0.25, .hausdorff95 = 3};
    }
    run.append("metrics.jsonl", metrics.to_json_line() + "\n");
  }
  const auto data = render_and_parse(run);
  EXPECT_EQ(data["curves"]["loss_mask_dice"]["mean"].dump(), "[0.25,0.5,0.75]");
  EXPECT_EQ(data["curves"]["loss_text"]["mean"][0], 1);
  EXPECT_EQ(data["curves"]["mask_learning_rate"]["mean"][0], 1e-3);
  const auto& evaluations = data["evaluations"];
  EXPECT_EQ(evaluations["dice"].dump(), "[0.25,0.75]");
  EXPECT_EQ(evaluations["best"]["dice"], 0.25);
  EXPECT_EQ(evaluations["newest"]["dice"], 0.75);
  EXPECT_EQ(evaluations["masks"].dump(),
            R"({"dice":0.75,"empty_predictions":0,"empty_truths":0,"hausdorff95":null,"iou":0.2,"masks":9})");
  const auto& structures = evaluations["structures"];
  ASSERT_EQ(structures.size(), 3u);
  EXPECT_EQ(structures[0]["name"], "kidney") << "it has the most masks";
  EXPECT_EQ(structures[0]["dice_curve"].dump(), "[0.125,0.375]");
  EXPECT_EQ(structures[0]["hausdorff95"], 3);
  EXPECT_EQ(structures[1]["name"], "</script>liver");
  EXPECT_EQ(structures[1]["dice_curve"].dump(), "[null,0.5]");
  EXPECT_EQ(structures[2]["masks"], 0) << "the newest evaluation has no bone masks";
}

TEST(RunEvaluationsTest, TheNumberOfStructuresIsLimited) {
  const RunFolder run;
  std::string lines;
  for (int64_t step = 1; step <= 300; ++step) {
    lines += fmt::format(R"({{"step":{0},"evaluation":{{"loss":1,"masks":{{"masks":1,"dice":0.5}},"structures":)"
                         R"({{"{1}{0}":{{"masks":1,"dice":0.5}},"bad":7}}}}}})",
                         step, std::string(400, 'x'));
    lines += "\n";
  }
  run.write("metrics.jsonl", lines + R"({"step":301,"evaluation":{"masks":[],"structures":[]}})"
                                     "\n");
  const auto evaluations = render_and_parse(run)["evaluations"];
  EXPECT_EQ(evaluations["masks"]["masks"], 0);
  EXPECT_EQ(evaluations["structures"].size(), 1u) << "names are shortened, and these begin alike";
  EXPECT_TRUE(evaluations["dice"].back().is_null());
}

TEST(RunEvaluationsTest, TheNumberOfPredictedSamplesIsLimited) {
  const RunFolder run;
  run.append_steps(1, 3, 3);
  for (int64_t i = 0; i < 100; ++i) run.append_prediction({.step = i, .id = std::to_string(i)});
  const auto predictions = render_and_parse(run)["predictions"];
  EXPECT_EQ(predictions["samples"].size() + predictions["hidden"].get<size_t>(), 100u);
  EXPECT_EQ(predictions["samples"].size(), 24u);
  EXPECT_EQ(predictions["samples"].back()["id"], "99");
}

}  // namespace
}  // namespace vlmtrain::report
