#include "vlmtrain/report/plan_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <regex>
#include <sstream>

#include "report/plan_bars.h"
#include "report/plan_example.h"
#include "report/plan_table.h"
#include "report/plan_words.h"

namespace vlmtrain::report {
namespace {

using testing::EndsWith;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(PlanTextTest, HeadlineOfAPlanThatFits) {
  EXPECT_EQ(plan_headline(example_plan()),
            "fits: 20.6 of 25.0 GB, micro-batch 2 x accumulation 8 = global batch 16, recomputing 9 of 27 vision "
            "blocks, full fine-tuning");
}

TEST(PlanTextTest, HeadlineNamesRanksAndOnlyWhatIsRecomputed) {
  planner::Plan plan = example_plan();
  plan.workload.world_size = 2;
  plan.chosen.choices.recompute = {};
  EXPECT_EQ(plan_headline(plan),
            "fits: 20.6 of 25.0 GB, micro-batch 2 x accumulation 4 x 2 ranks = global batch 16, full "
            "fine-tuning");
  plan.chosen.choices.recompute = {.vision = 27, .language = 12};
  EXPECT_THAT(plan_headline(plan), HasSubstr(", recomputing all vision and 12 of 24 language blocks"));
  plan.chosen.choices.recompute = {.vision = 27, .language = 24};
  EXPECT_THAT(plan_headline(plan), HasSubstr(", recomputing all blocks"));
}

TEST(PlanTextTest, HeadlineOfAPlanThatDoesNotFit) {
  EXPECT_EQ(plan_headline(example_plan_that_does_not_fit()),
            "does not fit: full fine-tuning of smolvlm-500m needs at least 20.6 GB (micro-batch 1, recomputing all "
            "blocks), the card has 13.5 GB beside its margin; 7.1 GB are missing");
}

TEST(PlanTextTest, HeadlineSaysWhatIsTrained) {
  planner::Plan plan = example_plan();
  plan.job.lora = nn::LoraSettings{.rank = 16};
  EXPECT_THAT(plan_headline(plan), EndsWith(", LoRA of rank 16"));
  EXPECT_THAT(plan_text(plan, {}), HasSubstr("LoRA of rank 16"));
  plan.job.lora.reset();
  plan.job.frozen.vision_tower = true;
  EXPECT_THAT(plan_headline(plan), EndsWith(", fine-tuning in part"));
}

TEST(PlanTextTest, WhatNeedsLeastIsNamedWithWhatIsFixed) {
  planner::Plan plan = example_plan_that_does_not_fit();
  plan.fixed.micro_batch_size = 1;
  plan.fixed.recompute.text = "all";
  plan.chosen.choices.vision_tiles_per_pass = 1;
  plan.chosen.choices.loss_chunk_rows = 1;
  EXPECT_THAT(plan_headline(plan),
              HasSubstr("needs at least 20.6 GB with training.micro_batch_size=1 and memory.recompute=all (micro-batch "
                        "1, recomputing all blocks, 1 tile a vision pass, loss in chunks of 1 row)"));
}

TEST(PlanTextTest, RemediesAreLinesToCopy) {
  for (const int width : {64, 100}) {
    const auto lines = lines_of(plan_text(example_plan_that_does_not_fit(), {.width = width}));
    EXPECT_THAT(lines, testing::Contains("What would make it fit (put one line behind the command)"));
    EXPECT_THAT(lines, testing::Contains("  lora.rank=16 model.quantization=nf4"));
    EXPECT_THAT(lines, testing::Contains("      trains adapters; 9.1 GB are enough then"));
    EXPECT_THAT(lines, testing::Contains("  - take a smaller model"));
  }
}

TEST(PlanTextTest, AVideoIsAVideo) {
  planner::Plan plan = example_plan();
  data::SampleShape& shape = plan.worst.shapes.front();
  shape.images = 1;
  shape.videos = 1;
  shape.video_frames = 16;
  shape.grids = {{8, 20, 24}};
  shape.pixel_rows = 3840;
  EXPECT_THAT(plan_text(plan, {.width = 100}),
              HasSubstr("2,622 tokens (2,106 of videos), 64 learnt; 1 video of 16 frames in 3,840 patches"));
  shape.images = 3;
  EXPECT_THAT(plan_text(plan, {.width = 100}), HasSubstr("2,106 of images and videos"));
  EXPECT_THAT(plan_text(plan, {.width = 100}), HasSubstr("2 images and 1 video of 16 frames"));
  const auto json = plan.to_json();
  EXPECT_EQ(json["images_per_sample"], 2);
  EXPECT_EQ(json["videos_per_sample"], 1);
  EXPECT_EQ(json["video_frames_per_sample"], 16);
}

TEST(PlanTextTest, PatchesOfAPictureAreNotCut) {
  planner::Plan plan = example_plan();
  plan.worst.shapes.front().grids = {{1, 20, 24}, {1, 40, 40}};
  EXPECT_EQ(vision_pass_words(plan), "all patches in one vision pass");
  plan.chosen.choices.vision_tiles_per_pass = 1;
  EXPECT_EQ(vision_pass_words(plan), "one picture a vision pass");
  plan.chosen.choices.vision_tiles_per_pass = 1000;
  EXPECT_EQ(vision_pass_words(plan), "1,000 patches a vision pass");
}

TEST(PlanTextTest, RefusalSaysFirstWhatMakesItFit) {
  const auto lines = lines_of(plan_refusal(example_plan_that_does_not_fit()));
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[0], StartsWith("does not fit: "));
  EXPECT_EQ(lines[1], "  lora.rank=16 model.quantization=nf4: trains adapters; 9.1 GB are enough then");
  EXPECT_EQ(lines[2], "  take a smaller model");
}

TEST(PlanTextTest, SaysWhatItIsFor) {
  planner::Plan plan = example_plan();
  plan.worst.first_id = "train-0042";
  plan.limit.card_bytes = 20'000'000'000;
  plan.mode = planner::Mode::kConservative;
  const std::string text = plan_text(plan, {.width = 100});
  EXPECT_THAT(text, StartsWith("fits: 20.6 of 20.0 GB"));
  EXPECT_THAT(text, HasSubstr("smolvlm-500m, 507.5 million parameters, all trained, bf16"));
  EXPECT_THAT(text, HasSubstr("worst is train-0042: 2,622 tokens (2,106 of images), 64 learnt; 2 images in 26 tiles"));
  EXPECT_THAT(text, HasSubstr("of which 20.0 GB are allowed (memory.limit_gb)"));
  EXPECT_THAT(text, HasSubstr("2.5 GB kept free, 10 % of the card (mode conservative)"));
  EXPECT_THAT(text, HasSubstr("(not measured)"));
  EXPECT_THAT(text, HasSubstr("Memory when most is taken: language block 12, backward pass"));
  EXPECT_THAT(text, HasSubstr("with 5 rehearsals"));
  plan.card.context_measured = true;
  EXPECT_THAT(plan_text(plan, {}), Not(HasSubstr("(not measured)")));
}

TEST(PlanTextTest, SaysWhatIsFrozen) {
  planner::Plan plan = example_plan();
  plan.job.frozen.vision_tower = true;
  plan.detail.trained_elements = 420'000'000;
  EXPECT_THAT(plan_text(plan, {.width = 100}), HasSubstr("420.0 million trained (frozen: vision tower)"));
}

class PlanTextWidthTest : public testing::TestWithParam<int> {};

TEST_P(PlanTextWidthTest, NoLineIsWider) {
  for (planner::Plan plan : {example_plan(), example_plan_that_does_not_fit()}) {
    plan.model = std::string(150, 'm');
    plan.worst.first_id = "some-folder/" + std::string(80, 'x');
    plan.chosen.choices.vision_tiles_per_pass = 1;
    plan.alternatives.front().choices.recompute = {.vision = 27, .language = 12};
    plan.alternatives.front().peaks.reserved_bytes = 1'436'800'000'000;
    for (const auto& line : lines_of(plan_text(plan, {.width = GetParam()}))) {
      EXPECT_LE(text_columns(line), GetParam()) << line;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Widths, PlanTextWidthTest, testing::Values(64, 73, 80, 100));

TEST(PlanTextTest, ColourIsOnlyAddedToTheText) {
  const std::string plain = plan_text(example_plan(), {.colour = false});
  const std::string coloured = plan_text(example_plan(), {.colour = true});
  EXPECT_EQ(plain.find('\x1b'), std::string::npos);
  EXPECT_NE(coloured, plain);
  EXPECT_EQ(std::regex_replace(coloured, std::regex("\x1b\\[[0-9;]*m"), ""), plain);
}

TEST(PlanTextTest, AsciiWhereTheTerminalHasNoMore) {
  const auto is_ascii = [](const std::string& text) {
    return std::all_of(text.begin(), text.end(), [](unsigned char byte) { return byte < 0x80; });
  };
  EXPECT_TRUE(is_ascii(plan_text(example_plan(), {.unicode = false})));
  EXPECT_FALSE(is_ascii(plan_text(example_plan(), {.unicode = true})));
}

TEST(PlanTextTest, NamesFromOutsideDoNotControlTheTerminal) {
  planner::Plan plan = example_plan();
  plan.model = "model\x1b[2J\nnext";
  plan.worst.first_id = "a\rb";
  const std::string text = plan_text(plan, {});
  EXPECT_THAT(text, HasSubstr("model\\x1b[2J\\nnext"));
  EXPECT_THAT(text, HasSubstr("a\\rb"));
  plan.fits = false;
  EXPECT_THAT(plan_headline(plan), Not(HasSubstr("\n")));
}

TEST(PlanTextTest, AlternativesMarkTheChosenAndTheInterpolated) {
  const auto lines = lines_of(plan_text(example_plan(), {}));
  const auto with = [&](const std::string& start) {
    const auto found =
        std::find_if(lines.begin(), lines.end(), [&](const auto& line) { return line.starts_with(start); });
    return found == lines.end() ? std::string() : *found;
  };
  EXPECT_EQ(with("> 2 x 8"), "> 2 x 8       vision 9                   20.6 GB   2.50 s    16,780  yes");
  EXPECT_EQ(with("  4 x 4"), "  4 x 4       none                      ~37.6 GB  ~2.20 s   ~19,069  no");
}

TEST(PlanTextTest, TableKeepsTheChosenAmongMany) {
  planner::Plan plan = example_plan();
  plan.workload.global_batch_size = 720;
  plan.alternatives.clear();
  for (int64_t size = 1; size <= 720; ++size) {
    if (720 % size != 0) continue;
    planner::Option option = plan.chosen;
    option.choices.micro_batch_size = size;
    option.choices.recompute = {};
    plan.alternatives.push_back(option);
  }
  const size_t sizes = plan.alternatives.size();
  plan.chosen.choices.micro_batch_size = 90;
  const auto table = alternatives_table(plan, 15, 80);
  EXPECT_EQ(table.lines.size(), 15u);
  EXPECT_EQ(table.left_out, sizes + 1 - 15) << "the chosen one, with recomputation, is one more";
  EXPECT_EQ(std::count_if(table.lines.begin(), table.lines.end(), [](const auto& line) { return line.chosen; }), 1);
  EXPECT_THAT(table.lines.back().text, Not(HasSubstr("720 x 1"))) << "far from the chosen micro-batch";
  EXPECT_EQ(alternatives_table(plan, 1, 80).lines.front().chosen, true);
}

TEST(PlanTextTest, SmallerPassesOfTheChosenAreNamed) {
  planner::Plan plan = example_plan();
  EXPECT_EQ(alternatives_table(plan, 15, 80).chosen_differs, "");
  plan.chosen.choices.vision_tiles_per_pass = 1;
  plan.chosen.choices.loss_chunk_rows = 128;
  EXPECT_EQ(alternatives_table(plan, 15, 80).chosen_differs, "1 tile a vision pass and loss chunks of 128 rows");
}

TEST(PlanTextTest, Numbers) {
  EXPECT_EQ(gigabytes(0), "0.0 GB");
  EXPECT_EQ(gigabytes(49'999'999), "<0.1 GB");
  EXPECT_EQ(gigabytes(50'000'000), "0.1 GB");
  EXPECT_EQ(gigabytes(84'179'681'280), "84.2 GB");
  EXPECT_EQ(seconds_words(0.0371), "37 ms");
  EXPECT_EQ(seconds_words(9.994), "9.99 s");
  EXPECT_EQ(seconds_words(134.6), "135 s");
}

}  // namespace
}  // namespace vlmtrain::report
