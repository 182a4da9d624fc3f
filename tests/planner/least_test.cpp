#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "planner/rehearsal.h"
#include "planner/rehearsed_options.h"
#include "vlmtrain/planner/search.h"

namespace vlmtrain::planner {
namespace {

struct LeastCase {
  const char* name;
  const char* preset;
  double card_gigabytes;
  models::HypotheticalSample sample;
  int64_t global_batch;
  std::optional<nn::LoraSettings> lora;
  models::FrozenParts frozen = {};

  friend std::ostream& operator<<(std::ostream& out, const LeastCase& least) { return out << least.name; }
};

/// A sample of what `bench/plan_least` does with hundreds of jobs.
class LeastTest : public testing::TestWithParam<LeastCase> {
 protected:
  PlanRequest request() const {
    Job job = model_.job();
    job.lora = GetParam().lora;
    job.frozen = GetParam().frozen;
    return {.model = GetParam().preset,
            .job = job,
            .card = card_of_size(GetParam().card_gigabytes),
            .limit_gigabytes = std::nullopt,
            .workload = {.candidates = {{.shapes = {model_.shape(GetParam().sample)}, .first_id = {}}},
                         .global_batch_size = GetParam().global_batch},
            .fixed = {}};
  }

  /// Around the plan's own.
  static std::vector<Choices> others(const Plan& plan) {
    const models::RecomputeBlocks all{.vision = plan.detail.vision_blocks, .language = plan.detail.language_blocks};
    std::vector<Choices> list;
    const auto with = [&](const auto& change) {
      Choices choices = plan.chosen.choices;
      change(choices);
      if (choices != plan.chosen.choices) list.push_back(choices);
    };
    for (const models::RecomputeBlocks blocks :
         {all, models::RecomputeBlocks{}, {all.vision, 0}, {0, all.language}, {all.vision / 2, all.language - 1}}) {
      with([&](Choices& choices) { choices.recompute = blocks; });
    }
    for (const int64_t tiles : {0, 1, 2, 5}) {
      with([&](Choices& choices) { choices.vision_tiles_per_pass = tiles; });
    }
    for (const int64_t rows : {1, 16, 128, 1024}) {
      with([&](Choices& choices) { choices.loss_chunk_rows = rows; });
    }
    with([](Choices& choices) { choices.micro_batch_size = 2; });
    with([](Choices& choices) { choices = {}; });
    return list;
  }

  const PresetFolder model_{GetParam().preset};
};

/// The allocator takes whole segments, and other passes fill them in another order: so much of what is reserved is not
/// searched for.
constexpr double kOfSegments = 0.015;

TEST_P(LeastTest, NoOtherChoiceNeedsLess) {
  const PlanRequest asked = request();
  const Plan plan = make_plan(asked);
  ASSERT_FALSE(plan.fits);
  RehearsedOptions rehearsed(asked.job, asked.card, asked.workload, plan.limit.limit_bytes);
  for (const Choices& choices : others(plan)) {
    const auto bytes = rehearsed.reserved_bytes(asked.job, choices, asked.workload.candidates);
    EXPECT_GE(static_cast<double>(bytes.value_or(kUnlimited)),
              (1 - kOfSegments) * static_cast<double>(plan.chosen.peaks.reserved_bytes))
        << "micro-batch " << choices.micro_batch_size << ", recomputing " << choices.recompute.vision << "+"
        << choices.recompute.language << ", " << choices.vision_tiles_per_pass << " tiles a pass, "
        << choices.loss_chunk_rows << " rows";
  }
  for (const auto& option : plan.alternatives) {
    EXPECT_GE(option.peaks.reserved_bytes, plan.chosen.peaks.reserved_bytes) << "in the table";
    EXPECT_FALSE(option.fits);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Of, LeastTest,
    testing::Values(
        LeastCase{"FourPicturesOfNativeResolution", "qwen2-vl-2b", 5, {.images = 4}, 16, nn::LoraSettings{.rank = 16}},
        LeastCase{"ManyTiles", "smolvlm-256m", 2, {.images = 4}, 8, {}},
        LeastCase{"AFrozenTower", "smolvlm-256m", 2, {.images = 3}, 8, {}, {.vision_tower = true}},
        LeastCase{"LongAnswers",
                  "smolvlm-500m",
                  2,
                  {.images = 1, .text_tokens = 3000, .label_tokens = 2500},
                  4,
                  nn::LoraSettings{.rank = 8}},
        LeastCase{"TextOnly", "smolvlm-256m", 2, {.images = 0, .text_tokens = 2000}, 6, {}}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace vlmtrain::planner
