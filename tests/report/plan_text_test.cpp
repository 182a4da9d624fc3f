#include "vlmtrain/report/plan_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <regex>
#include <sstream>

#include "report/format/text_layout.h"
#include "report/plan/plan_format.h"
#include "report/plan_example.h"

namespace vlmtrain::report {
namespace {

using testing::ContainsRegex;
using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::vector<std::string> split_lines(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(PlanTextTest, HeadlineForAPlanThatFits) {
  EXPECT_EQ(format_plan_headline(make_example_plan()),
            "fits: 20.6 of 25.0 GB, micro-batch 2 x accumulation 8 = global batch 16, recomputing 9 of 27 vision "
            "blocks, full fine-tuning");
}

TEST(PlanTextTest, HeadlineReportsRanksAndRecomputation) {
  planner::Plan plan = make_example_plan();
  plan.workload.world_size = 2;
  plan.best_estimate.step_config.recompute = {};
  EXPECT_EQ(format_plan_headline(plan),
            "fits: 20.6 of 25.0 GB, micro-batch 2 x accumulation 4 x 2 ranks = global batch 16, full "
            "fine-tuning");
  plan.best_estimate.step_config.recompute = {.vision = 27, .language = 12};
  EXPECT_THAT(format_plan_headline(plan), HasSubstr(", recomputing all vision and 12 of 24 language blocks"));
  plan.best_estimate.step_config.recompute = {.vision = 27, .language = 24};
  EXPECT_THAT(format_plan_headline(plan), HasSubstr(", recomputing all blocks"));
}

TEST(PlanTextTest, ModelsWithoutAVisionTowerHaveNoVisionWords) {
  planner::Plan plan = make_example_plan();
  EXPECT_THAT(format_plan(plan, {}), HasSubstr("27 vision and 24 language blocks"));
  plan.detail.num_vision_blocks = 0;
  plan.detail.peak.bytes_by_component[static_cast<size_t>(memory::Component::kVision)] = 0;
  plan.best_estimate.step_config.recompute = {.vision = 0, .language = 12};
  plan.alternatives.clear();
  plan.job.frozen_parts = {};
  plan.model = "qwen3-0.6b";
  const std::string text = format_plan(plan, {});
  EXPECT_THAT(text, HasSubstr("micro-batch x accumulation; 24 language blocks"));
  EXPECT_THAT(text, HasSubstr("loss in chunks of"));
  EXPECT_THAT(text, Not(HasSubstr("vision")));
}

TEST(PlanTextTest, HeadlineForAPlanThatDoesNotFit) {
  EXPECT_EQ(format_plan_headline(make_unfit_example_plan()),
            "does not fit: full fine-tuning of smolvlm-500m needs at least 20.6 GB (micro-batch 1, recomputing all "
            "blocks), the GPU has 13.5 GB after its margin; 7.1 GB are missing");
}

TEST(PlanTextTest, HeadlineReportsWhatIsTrained) {
  planner::Plan plan = make_example_plan();
  plan.job.lora = nn::LoraSettings{.rank = 16};
  EXPECT_THAT(format_plan_headline(plan), EndsWith(", LoRA of rank 16"));
  EXPECT_THAT(format_plan(plan, {}), HasSubstr("LoRA of rank 16"));
  plan.job.lora.reset();
  plan.job.frozen_parts.vision_tower = true;
  EXPECT_THAT(format_plan_headline(plan), EndsWith(", partial fine-tuning"));
}

TEST(PlanTextTest, ReportsTheMinimumWithTheConstraints) {
  planner::Plan plan = make_unfit_example_plan();
  plan.constraints.micro_batch_size = 1;
  plan.constraints.recompute.text = "all";
  plan.best_estimate.step_config.vision_tiles_per_pass = 1;
  plan.best_estimate.step_config.loss_chunk_rows = 1;
  EXPECT_THAT(format_plan_headline(plan),
              HasSubstr("needs at least 20.6 GB with training.micro_batch_size=1 and memory.recompute=all (micro-batch "
                        "1, recomputing all blocks, 1 tile per vision pass, loss in chunks of 1 row)"));
}

TEST(PlanTextTest, SuggestionsAreLinesToCopy) {
  for (const int width : {64, 100}) {
    const auto lines = split_lines(format_plan(make_unfit_example_plan(), {.width = width}));
    EXPECT_THAT(lines, testing::Contains("Suggestions to make it fit (append one line to the command)"));
    EXPECT_THAT(lines, testing::Contains("  lora.rank=16 model.quantization=nf4"));
    EXPECT_THAT(lines, testing::Contains("      trains adapters; 9.1 GB are enough then"));
    EXPECT_THAT(lines, testing::Contains("  - take a smaller model"));
  }
}

TEST(PlanTextTest, VideosAreReportedAsVideos) {
  planner::Plan plan = make_example_plan();
  data::SampleShape& shape = plan.worst_batch.shapes.front();
  shape.num_images = 0;
  shape.num_videos = 1;
  shape.video_frames = 16;
  shape.patch_grids = {{8, 20, 24}};
  shape.pixel_rows = 3840;
  EXPECT_THAT(format_plan(plan, {.width = 100}),
              HasSubstr("2,622 tokens (2,106 of videos), 64 label tokens; 1 video of 16 frames in 3,840 patches"));
  shape.num_images = 2;
  EXPECT_THAT(format_plan(plan, {.width = 100}), HasSubstr("2,106 of images and videos"));
  EXPECT_THAT(format_plan(plan, {.width = 100}),
              HasSubstr("2 images and 1 video of 16\n           frames in 3,840 patches"));
  const auto json = plan.to_json();
  EXPECT_EQ(json["images_per_sample"], 2);
  EXPECT_EQ(json["videos_per_sample"], 1);
  EXPECT_EQ(json["video_frames_per_sample"], 16);
}

TEST(PlanTextTest, PatchesOfAnImageAreNotSplit) {
  planner::Plan plan = make_example_plan();
  plan.worst_batch.shapes.front().patch_grids = {{1, 20, 24}, {1, 40, 40}};
  EXPECT_EQ(format_vision_pass(plan), "all patches in one vision pass");
  plan.best_estimate.step_config.vision_tiles_per_pass = 1;
  EXPECT_EQ(format_vision_pass(plan), "one image per vision pass");
  plan.best_estimate.step_config.vision_tiles_per_pass = 1000;
  EXPECT_EQ(format_vision_pass(plan), "1,000 patches per vision pass");
}

TEST(PlanTextTest, ErrorListsFittingSuggestionsFirst) {
  const auto lines = split_lines(format_plan_error(make_unfit_example_plan()));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[0], StartsWith("does not fit: "));
  EXPECT_EQ(lines[1], "  lora.rank=16 model.quantization=nf4: trains adapters; 9.1 GB are enough then");
  EXPECT_EQ(lines[2], "  take a smaller model");
}

TEST(PlanTextTest, DescribesTheModelSampleAndGpu) {
  planner::Plan plan = make_example_plan();
  plan.worst_batch.first_sample_id = "train-0042";
  plan.limit.allowed_bytes = 20'000'000'000;
  plan.mode = planner::MemoryMode::kConservative;
  const std::string text = format_plan(plan, {.width = 100});
  EXPECT_THAT(text, StartsWith("fits: 20.6 of 20.0 GB"));
  EXPECT_THAT(text, HasSubstr("smolvlm-500m, 507.5 million parameters, all trained, bf16"));
  EXPECT_THAT(text, HasSubstr("worst is train-0042: 2,622 tokens (2,106 of images), 64 label tokens; 2 images in 26\n"
                              "           tiles of 512x384"));
  EXPECT_THAT(text, HasSubstr("of which 20.0 GB are allowed (memory.limit_gb)"));
  EXPECT_THAT(text, HasSubstr("2.5 GB kept free, 10 % of the GPU (mode conservative)"));
  EXPECT_THAT(text, HasSubstr("(not measured)"));
  EXPECT_THAT(text, HasSubstr("Memory at the peak: language block 12, backward pass"));
  EXPECT_THAT(text, HasSubstr("with 5 dry runs on a virtual GPU"));
  plan.gpu().is_context_measured = true;
  EXPECT_THAT(format_plan(plan, {}), Not(HasSubstr("(not measured)")));
}

TEST(PlanTextTest, ReportsFrozenParts) {
  planner::Plan plan = make_example_plan();
  plan.job.frozen_parts.vision_tower = true;
  plan.detail.num_trainable_parameters = 420'000'000;
  EXPECT_THAT(format_plan(plan, {.width = 100}), HasSubstr("420.0 million trained (frozen: vision tower)"));
}

class PlanTextWidthTest : public testing::TestWithParam<int> {};

TEST_P(PlanTextWidthTest, NoLineIsWider) {
  for (planner::Plan plan : {make_example_plan(), make_unfit_example_plan()}) {
    plan.model = std::string(150, 'm');
    plan.worst_batch.first_sample_id = "some-folder/" + std::string(80, 'x');
    plan.best_estimate.step_config.vision_tiles_per_pass = 1;
    plan.alternatives.front().step_config.recompute = {.vision = 27, .language = 12};
    plan.alternatives.front().peaks.reserved_bytes = 1'436'800'000'000;
    for (const auto& line : split_lines(format_plan(plan, {.width = GetParam()}))) {
      EXPECT_LE(count_columns(line), GetParam()) << line;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, PlanTextWidthTest, testing::Values(64, 73, 80, 100));

TEST(PlanTextTest, ColorOnlyAddsEscapeSequences) {
  const std::string plain = format_plan(make_example_plan(), {.color = false});
  const std::string colored = format_plan(make_example_plan(), {.color = true});
  EXPECT_EQ(plain.find('\x1b'), std::string::npos);
  EXPECT_NE(colored, plain);
  EXPECT_EQ(std::regex_replace(colored, std::regex("\x1b\\[[0-9;]*m"), ""), plain);
}

TEST(PlanTextTest, UsesAsciiWithoutUnicode) {
  const auto is_ascii = [](const std::string& text) {
    return std::all_of(text.begin(), text.end(), [](unsigned char byte) { return byte < 0x80; });
  };
  EXPECT_TRUE(is_ascii(format_plan(make_example_plan(), {.unicode = false})));
  EXPECT_FALSE(is_ascii(format_plan(make_example_plan(), {.unicode = true})));
}

TEST(PlanTextTest, ExternalNamesDoNotControlTheTerminal) {
  planner::Plan plan = make_example_plan();
  plan.model = "model\x1b[2J\nnext";
  plan.worst_batch.first_sample_id = "a\rb";
  const std::string text = format_plan(plan, {});
  EXPECT_THAT(text, HasSubstr("model\\x1b[2J\\nnext"));
  EXPECT_THAT(text, HasSubstr("a\\rb"));
  plan.fits = false;
  EXPECT_THAT(format_plan_headline(plan), Not(HasSubstr("\n")));
}

TEST(PlanTextTest, AlternativesMarkTheBestAndTheInterpolated) {
  const std::string text = format_plan(make_example_plan(), {});
  EXPECT_THAT(text, ContainsRegex("\n  > +2 x 8 +vision 9 +20.6 GB +2.50 s +16,780 +yes\n"));
  EXPECT_THAT(text, ContainsRegex("\n +4 x 4 +none +~37.6 GB +~2.20 s +~19,069 +no\n"));
}

TEST(PlanTextTest, TableKeepsTheBestAmongMany) {
  planner::Plan plan = make_example_plan();
  plan.workload.global_batch_size = 720;
  plan.alternatives.clear();
  for (int64_t size = 1; size <= 720; ++size) {
    if (720 % size != 0) continue;
    planner::StepEstimate estimate = plan.best_estimate;
    estimate.step_config.micro_batch_size = size;
    estimate.step_config.recompute = {};
    plan.alternatives.push_back(estimate);
  }
  const size_t sizes = plan.alternatives.size();
  plan.best_estimate.step_config.micro_batch_size = 90;
  const auto alternatives = make_alternatives_table(plan, 15);
  const auto& rows = alternatives.table.rows;
  const auto is_best = [](const TableRow& row) { return row.cells[0] == ">" && row.emphasis == Emphasis::kStrong; };
  EXPECT_EQ(rows.size(), 15u);
  EXPECT_EQ(alternatives.num_hidden_alternatives, sizes + 1 - 15) << "the chosen one, with recomputation, is one more";
  EXPECT_EQ(std::ranges::count_if(rows, is_best), 1);
  EXPECT_NE(rows.back().cells[1], "720 x 1") << "far from the chosen micro-batch";
  EXPECT_TRUE(is_best(make_alternatives_table(plan, 1).table.rows.front()));
}

TEST(PlanTextTest, SmallerPassesOfTheBestAreReported) {
  planner::Plan plan = make_example_plan();
  EXPECT_EQ(make_alternatives_table(plan, 15).best_config_passes, "");
  plan.best_estimate.step_config.vision_tiles_per_pass = 1;
  plan.best_estimate.step_config.loss_chunk_rows = 128;
  EXPECT_EQ(make_alternatives_table(plan, 15).best_config_passes, "1 tile per vision pass and loss chunks of 128 rows");
}

TEST(PlanTextTest, Numbers) {
  EXPECT_EQ(format_gigabytes(0), "0.0 GB");
  EXPECT_EQ(format_gigabytes(49'999'999), "<0.1 GB");
  EXPECT_EQ(format_gigabytes(50'000'000), "0.1 GB");
  EXPECT_EQ(format_gigabytes(84'179'681'280), "84.2 GB");
  EXPECT_EQ(format_seconds(0.0371), "37 ms");
  EXPECT_EQ(format_seconds(9.994), "9.99 s");
  EXPECT_EQ(format_seconds(134.6), "135 s");
}

}  // namespace
}  // namespace vlmtrain::report
