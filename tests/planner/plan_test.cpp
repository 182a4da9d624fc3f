#include "vlmtrain/planner/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <sstream>

#include "planner/rehearsal.h"
#include "planner/rehearsed_options.h"
#include "planner/user_error.h"
#include "vlmtrain/planner/search.h"

namespace vlmtrain::planner {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

Workload workload_of(data::SampleShape shape, int64_t global_batch, int64_t world = 1) {
  return {.candidates = {{.shapes = {shape}, .first_id = {}}}, .global_batch_size = global_batch, .world_size = world};
}

/// As the planner itself rehearses choices with a batch.
Option rehearse(const PlanRequest& request, const Choices& choices, const SampleBatch& batch) {
  const auto limit = limit_of(request.card, request.mode, request.limit_gigabytes, request.workload.world_size);
  RehearsedOptions rehearsed(request.job, request.card, request.workload, limit.limit_bytes);
  rehearsed.must_hold(batch);
  return rehearsed.rehearse(choices);
}

std::optional<Choices> with_next_larger_micro_batch(const Plan& plan) {
  Choices larger = plan.chosen.choices;
  for (int64_t size = larger.micro_batch_size + 1; size <= plan.workload.samples_per_rank(); ++size) {
    if (plan.workload.samples_per_rank() % size != 0) continue;
    larger.micro_batch_size = size;
    return larger;
  }
  return std::nullopt;
}

class TinyPlanTest : public testing::Test {
 protected:
  PlanRequest request(int64_t global_batch, int64_t world = 1) const {
    return {.model = "smolvlm-tiny",
            .job = model_.job(),
            .card = card_by_name("rtx4090"),
            .limit_gigabytes = std::nullopt,
            .workload = workload_of(model_.shape({.images = 1}), global_batch, world),
            .fixed = {}};
  }

  const PresetFolder model_{"smolvlm-tiny"};
};

TEST_F(TinyPlanTest, TheGlobalBatchIsKeptExactly) {
  for (const int64_t global : {1, 6, 7, 16, 48}) {
    for (const int64_t world : {1, 2, 4}) {
      SCOPED_TRACE(fmt::format("{} samples, {} ranks", global, world));
      if (global % world != 0) {
        EXPECT_THAT(message_of([&] { make_plan(request(global, world)); }),
                    AllOf(HasSubstr(std::to_string(global)), HasSubstr(std::to_string(world) + " ranks")));
        continue;
      }
      const Plan plan = make_plan(request(global, world));
      ASSERT_TRUE(plan.fits);
      EXPECT_EQ(plan.chosen.choices.micro_batch_size * plan.accumulation_steps() * world, global);
      EXPECT_LE(plan.chosen.peaks.reserved_bytes, plan.limit.limit_bytes);
      for (const auto& option : plan.alternatives) {
        EXPECT_EQ((global / world) % option.choices.micro_batch_size, 0);
      }
    }
  }
}

TEST_F(TinyPlanTest, AMicroBatchThatDoesNotDivideIsRefusedWithTheOnesThatDo) {
  PlanRequest wrong = request(48, 4);
  wrong.fixed.micro_batch_size = 5;
  EXPECT_THAT(message_of([&] { make_plan(wrong); }),
              AllOf(HasSubstr("micro-batch of 5"), HasSubstr("12 samples"), HasSubstr("1, 2, 3, 4, 6, 12")));
  wrong.fixed.micro_batch_size = 24;
  EXPECT_THAT(message_of([&] { make_plan(wrong); }), HasSubstr("1, 2, 3, 4, 6, 12")) << "more than a rank has";
}

TEST_F(TinyPlanTest, AModelThatCannotBeBuiltIsTheUsersError) {
  PlanRequest wrong = request(4);
  wrong.job.model = "/nowhere";
  EXPECT_THAT(message_of([&] { make_plan(wrong); }, ExitCode::kBadData),
              HasSubstr("/nowhere: there is no such folder"));
}

TEST_F(TinyPlanTest, ACardThatDoesNotComputeInBf16IsRefused) {
  PlanRequest old_card = request(4);
  old_card.card = card_by_name("t4");
  EXPECT_THAT(message_of([&] { make_plan(old_card); }), AllOf(HasSubstr("Tesla T4"), HasSubstr("precision=fp32")));
  old_card.job = with_precision(old_card.job, engine::Precision::kFp32);
  EXPECT_TRUE(make_plan(old_card).fits);
  old_card.job = with_precision(old_card.job, engine::Precision::kFp16);
  EXPECT_TRUE(make_plan(old_card).fits);
}

/// Two ranks of two samples are as two samples, but for what they say to each other.
TEST_F(TinyPlanTest, ALargerCardHoldsWhatTheRanksSayToEachOtherToo) {
  const auto larger = [&](int64_t global_batch, int64_t world) {
    PlanRequest small = request(global_batch, world);
    small.card.memory_bytes = 400'000'000;
    const Plan plan = make_plan(small);
    EXPECT_FALSE(plan.fits);
    return plan.suggestions.back();
  };
  const Suggestion alone = larger(2, 1);
  const Suggestion together = larger(4, 2);
  EXPECT_THAT(alone.note, testing::ContainsRegex("a card of [0-9]+ GB or more; [0-9]+.[0-9] GB are enough then"));
  EXPECT_EQ(together.note.substr(0, together.note.find(';')), alone.note.substr(0, alone.note.find(';')));
  EXPECT_EQ(together.total_bytes - alone.total_bytes,
            limit_of(card_by_name("rtx4090"), Mode::kBalanced, std::nullopt, 2).communication_bytes);
}

/// What ranks add up is their gradients, in fp32 and as laid out; it takes no memory of PyTorch's.
TEST_F(TinyPlanTest, RanksAddTheirGradientsUp) {
  const Plan alone = make_plan(request(4)), together = make_plan(request(16, 4));
  EXPECT_FALSE(alone.communication);
  ASSERT_TRUE(together.communication);
  const StepSums& sums = together.communication->sums;
  const double gradients = 4.0 * static_cast<double>(together.detail.trained_elements);
  EXPECT_GE(static_cast<double>(together.communication->bytes()), gradients);
  EXPECT_LE(static_cast<double>(together.communication->bytes()), 1.1 * gradients);
  EXPECT_EQ(together.peaks().reserved_bytes, alone.peaks().reserved_bytes);
  EXPECT_EQ(together.peaks().allocated_bytes, alone.peaks().allocated_bytes);
  EXPECT_DOUBLE_EQ(together.chosen.step_seconds, alone.chosen.step_seconds + together.communication->waiting_seconds);
  EXPECT_GT(together.communication->waiting_seconds, 0);
  EXPECT_GE(sums.overlapping, 0);
  EXPECT_LT(sums.overlapping, std::ssize(sums.sums));
}

TEST_F(TinyPlanTest, GradientsOfTasksThatAreKeptApartOverlapWithNothing) {
  PlanRequest apart = request(8, 2);
  apart.job.objective.tasks = {.count = 2, .weights = {1, 1}, .resolve_conflicts = true};
  const Plan plan = make_plan(apart), usual = make_plan(request(8, 2));
  EXPECT_EQ(plan.communication->sums.overlapping, 0);
  EXPECT_GT(plan.communication->bytes(), 1.9 * static_cast<double>(usual.communication->bytes()));
}

/// Rank 1 of two has all that is large in the second of the steps.
TEST_F(TinyPlanTest, TheRankThatNeedsMostIsNamed) {
  PlanRequest drawn = request(8, 2);
  const auto large = model_.shape({.images = 2}), small = model_.shape({.images = 0, .text_tokens = 80});
  const std::vector larger(4, large), smaller(4, small);
  drawn.workload.candidates = {{.shapes = {large}, .first_id = "large"}};
  drawn.workload.drawn = {{smaller, smaller}, {smaller, larger}};
  const Plan plan = make_plan(drawn);
  ASSERT_EQ(plan.rank_steps.size(), 2U);
  EXPECT_EQ(plan.rank_steps[1].rank, 1);
  EXPECT_EQ(plan.rank_steps[1].drawn_step, 1);
  EXPECT_GT(plan.rank_steps[1].peaks.allocated_bytes, plan.rank_steps[0].peaks.allocated_bytes);
  EXPECT_LE(plan.rank_steps[1].peaks.reserved_bytes, plan.peaks().reserved_bytes);
  const auto json = plan.to_json()["ranks"];
  EXPECT_EQ(json[0]["rank"], 1);
}

TEST_F(TinyPlanTest, SaysWhatStaysFreeWhereTheBatchIsOneMicroBatch) {
  const Plan plan = make_plan(request(2));
  ASSERT_FALSE(plan.suggestions.empty());
  EXPECT_THAT(plan.suggestions.back().text(), testing::ContainsRegex("; 2[0-9].[0-9] GB stay free beside the margin"));
}

TEST_F(TinyPlanTest, TextAloneIsPlannedToo) {
  PlanRequest text = request(8);
  text.workload = workload_of(model_.shape({.images = 0, .text_tokens = 200}), 8);
  const Plan plan = make_plan(text);
  EXPECT_TRUE(plan.fits);
  EXPECT_EQ(plan.chosen.choices.recompute.vision, 0) << "there is nothing to recompute";
}

TEST_F(TinyPlanTest, IsMadeAgainTheSame) {
  const Plan first = make_plan(request(16));
  const Plan again = make_plan(request(16));
  auto json = first.to_json();
  auto other = again.to_json();
  for (auto* one : {&json, &other}) {
    one->erase("plan_seconds");
    one->erase("rehearsal_seconds");
  }
  EXPECT_EQ(json, other);
}

TEST_F(TinyPlanTest, TheJsonSaysTheSameAsThePlan) {
  const Plan plan = make_plan(request(16, 2));
  const auto json = plan.to_json();
  EXPECT_EQ(json["gradient_accumulation_steps"], plan.accumulation_steps());
  EXPECT_EQ(json["limit_bytes"], plan.limit.limit_bytes);
  const auto& memory = json["memory"];
  const auto bytes = [&](const char* key) { return memory[key].get<int64_t>(); };
  EXPECT_EQ(bytes("total_bytes"), bytes("reserved_peak_bytes") + bytes("context_bytes") + bytes("communication_bytes"));
  EXPECT_EQ(bytes("allocated_peak_bytes"), bytes("weights_bytes") + bytes("gradients_bytes") +
                                               bytes("optimizer_bytes") + bytes("activations_bytes") +
                                               bytes("workspace_bytes"));
  EXPECT_EQ(bytes("activations_bytes"), bytes("vision_activations_bytes") + bytes("language_activations_bytes") +
                                            bytes("loss_bytes") + bytes("input_bytes"));
  EXPECT_EQ(bytes("fragmentation_bytes"), bytes("reserved_peak_bytes") - bytes("allocated_peak_bytes"));
  EXPECT_GT(bytes("communication_bytes"), 0);
  EXPECT_EQ(json["alternatives"].size(), plan.alternatives.size());
  EXPECT_GT(json["plan_seconds"], 0);
}

/// SmolVLM-256M, whose activations do not all fit.
class PlanTest : public testing::Test {
 protected:
  PlanRequest request(double card_gigabytes) const {
    return {.model = "smolvlm-256m",
            .job = model_.job(),
            .card = card_of_size(card_gigabytes),
            .limit_gigabytes = std::nullopt,
            .workload = workload_of(one_image_, 16),
            .fixed = {}};
  }

  void expect_fits(const Plan& plan) const {
    EXPECT_TRUE(plan.fits);
    EXPECT_TRUE(plan.chosen.fits);
    EXPECT_TRUE(plan.chosen.rehearsed);
    EXPECT_LE(plan.chosen.peaks.reserved_bytes, plan.limit.limit_bytes);
    EXPECT_LE(plan.total_bytes() + plan.limit.margin_bytes, plan.limit.card_bytes);
  }

  const PresetFolder model_{"smolvlm-256m"};
  const data::SampleShape one_image_ = model_.shape({.images = 1});
};

/// By the card's size in gigabytes.
class PlanBySizeTest : public PlanTest, public testing::WithParamInterface<int> {};

TEST_P(PlanBySizeTest, FitsAndTheNextLargerMicroBatchDoesNot) {
  const PlanRequest asked = request(GetParam());
  const Plan plan = make_plan(asked);
  expect_fits(plan);
  const auto larger = with_next_larger_micro_batch(plan);
  ASSERT_TRUE(larger) << "the whole global batch in one micro-batch fits, so this test tests nothing";
  EXPECT_FALSE(rehearse(asked, *larger, plan.worst).fits);
}

TEST_F(PlanTest, RecomputesNoBlockThatNeedNotBe) {
  PlanRequest asked = request(16);
  asked.fixed.micro_batch_size = 4;
  const Plan plan = make_plan(asked);
  expect_fits(plan);
  ASSERT_GT(plan.chosen.choices.recompute.vision + plan.chosen.choices.recompute.language, 0);
  for (int64_t models::RecomputeBlocks::*tower :
       {&models::RecomputeBlocks::vision, &models::RecomputeBlocks::language}) {
    Choices fewer = plan.chosen.choices;
    if (fewer.recompute.*tower == 0) continue;
    fewer.recompute.*tower -= 1;
    const bool fits = rehearse(asked, fewer, plan.worst).fits;
    // The tower that is recomputed last decides; of the other all blocks are recomputed.
    const int64_t blocks = tower == &models::RecomputeBlocks::vision ? 12 : 30;
    if (plan.chosen.choices.recompute.*tower < blocks) {
      EXPECT_FALSE(fits);
    }
  }
}

/// The card itself, with everything else on it that the plan reckons with and most of the margin filled, does the plan
/// without a retry.
TEST_P(PlanBySizeTest, ACardOfThatSizeDoesThePlan) {
  const PlanRequest asked = request(GetParam());
  const Plan plan = make_plan(asked);
  expect_fits(plan);
  // Steps in another order fill the allocator's pages in another way; of the plan's margin this is a fifth.
  const int64_t room = plan.chosen.peaks.reserved_bytes + plan.limit.margin_bytes / 5;
  RehearsalProcess card(asked.job, {.gpu = std::string(asked.card.gpu->name),
                                    .memory_bytes = asked.card.memory_bytes,
                                    .used_bytes = asked.card.memory_bytes - room});
  const std::vector<SampleGroup> samples{{one_image_, plan.workload.samples_per_rank()}};
  const Outcome outcome = card.rehearse({.choices = plan.chosen.choices, .steps = std::vector(3, samples)});
  EXPECT_FALSE(outcome.out_of_memory);
  EXPECT_EQ(outcome.allocation_retries, 0);
  EXPECT_LE(outcome.peaks().reserved_bytes, room);
  EXPECT_GE(static_cast<double>(outcome.peaks().reserved_bytes),
            0.97 * static_cast<double>(plan.chosen.peaks.reserved_bytes))
      << "of which smaller batches between, which fragment the memory, take the rest";
}

TEST_F(PlanTest, TheChosenIsAmongTheAlternativesAndNoneThatFitsIsFaster) {
  const Plan plan = make_plan(request(16));
  bool found = false;
  for (const auto& option : plan.alternatives) {
    found |= option.choices == plan.chosen.choices;
    EXPECT_EQ(option.fits, option.peaks.reserved_bytes <= plan.limit.limit_bytes);
    EXPECT_GT(option.step_seconds, 0);
    EXPECT_GT(option.tokens_per_second, 0);
    if (option.fits && option.rehearsed) {
      EXPECT_GE(option.step_seconds, plan.chosen.step_seconds);
    }
  }
  EXPECT_TRUE(found);
  EXPECT_TRUE(std::ranges::is_sorted(plan.alternatives, {}, [](const Option& option) {
    const auto& choices = option.choices;
    return std::tuple(choices.micro_batch_size, choices.recompute.vision + choices.recompute.language);
  }));
}

TEST_F(PlanTest, WhatIsFixedIsKept) {
  PlanRequest asked = request(24);
  asked.fixed = {.micro_batch_size = 4,
                 .recompute = {"7"},
                 .vision_tiles_per_pass = 6,
                 .loss_chunk_rows = 100,
                 .expandable_segments = false};
  const Plan plan = make_plan(asked);
  const Choices& choices = plan.chosen.choices;
  EXPECT_EQ(choices.micro_batch_size, 4);
  EXPECT_EQ(choices.recompute, (models::RecomputeBlocks{.vision = 7, .language = 7}));
  EXPECT_EQ(choices.vision_tiles_per_pass, 6);
  EXPECT_EQ(choices.loss_chunk_rows, 100);
  EXPECT_FALSE(choices.expandable_segments);
  EXPECT_EQ(plan.accumulation_steps(), 4);
  EXPECT_EQ(plan.fits, plan.chosen.peaks.reserved_bytes <= plan.limit.limit_bytes);
}

TEST_F(PlanTest, AMoreConservativeModeKeepsMoreFree) {
  PlanRequest asked = request(7);
  std::optional<Plan> before;
  for (const Mode mode : {Mode::kConservative, Mode::kBalanced, Mode::kAggressive}) {
    asked.mode = mode;
    const Plan plan = make_plan(asked);
    expect_fits(plan);
    EXPECT_GE(plan.limit.card_bytes - plan.total_bytes(),
              static_cast<int64_t>(static_cast<double>(plan.limit.card_bytes) * margin_percent(mode) / 100));
    if (before) {
      EXPECT_GT(plan.limit.limit_bytes, before->limit.limit_bytes);
      EXPECT_LE(plan.chosen.step_seconds, before->chosen.step_seconds) << "what is not kept free makes it no slower";
    }
    before = plan;
  }
}

TEST_F(PlanTest, AMemoryLimitIsALimit) {
  PlanRequest asked = request(24);
  asked.limit_gigabytes = 10;
  const Plan plan = make_plan(asked);
  expect_fits(plan);
  EXPECT_EQ(plan.limit.card_bytes, 10'000'000'000);
  EXPECT_LT(plan.total_bytes(), 9'500'000'000);
}

/// One batch with the longest texts and one with the most tiles: which is the worst depends on what is recomputed.
TEST_P(PlanBySizeTest, HoldsEveryBatchThatCanCome) {
  const auto texts = model_.shape({.images = 0, .text_tokens = 6000, .label_tokens = 3000});
  const auto pictures = model_.shape({.images = 2, .text_tokens = 64, .label_tokens = 16});
  PlanRequest asked = request(GetParam() + 2);
  asked.workload = {
      .candidates = {{.shapes = {texts}, .first_id = "texts"}, {.shapes = {pictures}, .first_id = "pictures"}},
      .global_batch_size = 8};
  const Plan plan = make_plan(asked);
  expect_fits(plan);
  std::vector<int64_t> peaks;
  for (const auto& candidate : asked.workload.candidates) {
    peaks.push_back(rehearse(asked, plan.chosen.choices, candidate).peaks.reserved_bytes);
    EXPECT_LE(peaks.back(), plan.limit.limit_bytes) << candidate.first_id;
  }
  EXPECT_EQ(plan.chosen.peaks.reserved_bytes, std::ranges::max(peaks)) << "what a run can come to, not less";
  const auto worst = static_cast<size_t>(std::ranges::max_element(peaks) - peaks.begin());
  EXPECT_EQ(plan.worst.first_id, asked.workload.candidates[worst].first_id);
}

INSTANTIATE_TEST_SUITE_P(Gigabytes, PlanBySizeTest, testing::Values(8, 16, 24));

/// Without recomputation the pictures need most, with that of the vision tower the texts: both fit, but the plan's
/// numbers are to be theirs.
TEST_F(PlanTest, SaysWhatTheWorstBatchNeedsWithThePlanEvenIfAnotherIsWorseWithoutIt) {
  PlanRequest asked = request(48);
  asked.fixed.recompute.text = "12+0";
  asked.fixed.micro_batch_size = 1;
  const SampleBatch texts{.shapes = {model_.shape({.images = 0, .text_tokens = 6000, .label_tokens = 3000})},
                          .first_id = "texts"};
  const SampleBatch pictures{.shapes = {model_.shape({.images = 1, .text_tokens = 64, .label_tokens = 16})},
                             .first_id = "pictures"};
  Choices nothing_recomputed = micro_batches_of(1);
  ASSERT_GT(rehearse(asked, nothing_recomputed, pictures).peaks.reserved_bytes,
            rehearse(asked, nothing_recomputed, texts).peaks.reserved_bytes);
  asked.workload = {.candidates = {texts, pictures}, .global_batch_size = 4};
  const Plan plan = make_plan(asked);
  expect_fits(plan);
  const int64_t of_texts = rehearse(asked, plan.chosen.choices, texts).peaks.reserved_bytes;
  ASSERT_GT(of_texts, rehearse(asked, plan.chosen.choices, pictures).peaks.reserved_bytes);
  EXPECT_EQ(plan.chosen.peaks.reserved_bytes, of_texts);
  EXPECT_EQ(plan.worst.first_id, "texts");
  EXPECT_EQ(plan.detail.peak.allocated_bytes, plan.chosen.peaks.allocated_bytes);
  for (const auto& option : plan.alternatives) {
    if (option.choices == plan.chosen.choices) {
      EXPECT_EQ(option.peaks.reserved_bytes, of_texts);
    }
  }
}

/// Where attention takes much of the time, what it gave is kept in as many blocks as fit.
TEST_F(PlanTest, OfLongSamplesAttentionIsNotComputedAgainWhereThatFits) {
  PlanRequest asked = request(7);
  asked.fixed.micro_batch_size = 1;
  asked.workload = workload_of(model_.shape({.images = 0, .text_tokens = 16000, .label_tokens = 100}), 4);
  const Plan plan = make_plan(asked);
  expect_fits(plan);
  const models::RecomputeBlocks chosen = plan.chosen.choices.recompute;
  EXPECT_GT(chosen.language_attention_kept, 0);
  const SampleBatch& worst = asked.workload.candidates.front();
  Choices without = plan.chosen.choices;
  without.recompute.language_attention_kept = 0;
  const Option again = rehearse(asked, without, worst);
  EXPECT_LT(again.peaks.reserved_bytes, plan.chosen.peaks.reserved_bytes);
  EXPECT_GT(again.step_seconds, plan.chosen.step_seconds);
}

/// The first sample of the worst batch by tokens alone need not make the worst batch.
TEST_F(PlanTest, AnEvenBatchCanBeWorseThanOneWithAnOutlier) {
  const auto large = model_.shape({.images = 2});
  const auto small = model_.shape({.images = 0, .text_tokens = 64, .label_tokens = 8});
  SampleBatch outlier{.shapes = {model_.shape({.images = 3})}, .first_id = "outlier"};
  outlier.shapes.resize(16, small);
  SampleBatch even{.shapes = std::vector(16, large), .first_id = "even"};
  PlanRequest asked = request(24);
  asked.fixed.micro_batch_size = 2;
  asked.workload = {.candidates = {outlier, even}, .global_batch_size = 16};
  const Plan plan = make_plan(asked);
  expect_fits(plan);
  for (const auto& candidate : asked.workload.candidates) {
    EXPECT_TRUE(rehearse(asked, plan.chosen.choices, candidate).fits) << candidate.first_id;
  }
}

/// A value behind "key=".
std::string value_of(const std::string& argument) {
  return argument.substr(argument.find('=') + 1);
}

/// What a suggestion asks for, done to the request word by word. False for a word that is not known here.
bool apply(const std::vector<std::string>& arguments, PlanRequest& request) {
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string key = arguments[i].substr(0, arguments[i].find('='));
    const std::string value = key == arguments[i] ? "" : value_of(arguments[i]);
    const bool is_auto = value == "auto";
    if (key == "memory.recompute") {
      request.fixed.recompute.text = value;
    } else if (key == "training.micro_batch_size") {
      request.fixed.micro_batch_size = is_auto ? std::nullopt : std::optional{std::stoll(value)};
    } else if (key == "memory.mode" && value == "aggressive") {
      request.mode = Mode::kAggressive;
    } else if (key == "memory.limit_gb") {
      request.limit_gigabytes = is_auto ? std::nullopt : std::optional{std::stod(value)};
    } else if (key == "training.optimizer_states" && value == "8bit") {
      request.job.optimizer.states = engine::OptimizerStates::k8Bit;
    } else if (key == "model.freeze_vision_tower" && value == "true") {
      request.job.frozen.vision_tower = true;
      if (request.job.lora) request.job.lora->left_out.push_back(nn::Component::kVisionTower);
    } else if (key == "lora.rank") {
      request.job.lora = nn::LoraSettings{.rank = std::stoll(value)};
    } else if (key == "model.quantization") {
      request.job.quantization = value == "nf4" ? nn::Quantization::kNf4 : nn::Quantization::kInt8;
    } else if (key == "--images") {
      const auto limited = request.sample_limits.front().measure(std::stoll(arguments[++i]), true);
      request.workload = limited->workload;
    } else if (key == "--gpu-gb") {
      request.card = card_of_size(std::stod(arguments[++i]));
    } else {
      return false;
    }
  }
  return !arguments.empty();
}

struct RefusedCase {
  const char* name;
  double card_gigabytes;
  std::optional<double> limit_gigabytes;
  FixedChoices fixed;
  int64_t images;

  friend std::ostream& operator<<(std::ostream& out, const RefusedCase& refused) { return out << refused.name; }
};

/// Whatever is said to make it fit does.
class RefusedPlanTest : public PlanTest, public testing::WithParamInterface<RefusedCase> {};

TEST_P(RefusedPlanTest, EverySuggestionThatMakesItFitDoes) {
  PlanRequest asked = request(GetParam().card_gigabytes);
  asked.limit_gigabytes = GetParam().limit_gigabytes;
  asked.fixed = GetParam().fixed;
  asked.workload = workload_of(model_.shape({.images = GetParam().images}), 4);
  asked.words = {.card = "--gpu-gb {}", .card_by_size = true};
  asked.sample_limits = {{.form = "--images {}",
                          .now = GetParam().images,
                          .least = [] { return int64_t{1}; },
                          .unit = 1,
                          .meaning = "fewer images",
                          .measure = [&](int64_t images, bool) -> std::optional<LimitedSamples> {
                            return LimitedSamples{.workload = workload_of(model_.shape({.images = images}), 4)};
                          }}};
  const Plan plan = make_plan(asked);
  ASSERT_FALSE(plan.fits);
  EXPECT_GT(plan.chosen.peaks.reserved_bytes, plan.limit.limit_bytes) << "what needs least needs too much";
  ASSERT_THAT(plan.suggestions, Not(IsEmpty()));
  for (const auto& suggestion : plan.suggestions) {
    SCOPED_TRACE(suggestion.text());
    EXPECT_TRUE(suggestion.makes_it_fit);
    PlanRequest changed = asked;
    ASSERT_TRUE(apply(suggestion.arguments, changed)) << "each can be followed";
    const Plan remedied = make_plan(changed);
    EXPECT_TRUE(remedied.fits) << remedied.chosen.peaks.reserved_bytes << " of " << remedied.limit.limit_bytes;
  }
}

FixedChoices fixed(std::optional<int64_t> micro_batch, const std::string& recompute) {
  FixedChoices choices;
  choices.micro_batch_size = micro_batch;
  choices.recompute.text = recompute;
  return choices;
}

/// On which the job would fit if it needed a tenth less.
TargetCard card_too_small_by_a_little(const PlanRequest& request) {
  PlanRequest small = request;
  small.card = card_of_size(1);
  const Plan plan = make_plan(small);
  return card_of_size(0.93 * static_cast<double>(plan.total_bytes()) / 1e9);
}

/// Where a person's own limit is what is in the way, no other card is named.
TEST_F(PlanTest, ALimitOfOnesOwnIsRaisedOnTheSameCard) {
  for (const bool by_flag : {false, true}) {
    PlanRequest asked = request(24);
    asked.limit_gigabytes = 4.0;
    asked.workload = workload_of(one_image_, 4);
    if (by_flag) asked.words = {.card = "--gpu {}"};
    const Plan plan = make_plan(asked);
    ASSERT_FALSE(plan.fits);
    std::vector<std::string> texts;
    for (const auto& suggestion : plan.suggestions) texts.push_back(suggestion.text());
    EXPECT_THAT(texts, Contains(HasSubstr("memory.limit_gb=")));
    EXPECT_THAT(texts, Not(Contains(HasSubstr("card of"))));
    EXPECT_THAT(texts, Not(Contains(HasSubstr("--gpu"))));
  }
}

/// Micro-batch and recomputation are fixed, and undoing both is not enough.
TEST_F(PlanTest, FixedChoicesAreUndoneTogetherWithAnotherChange) {
  PlanRequest asked = request(5);
  asked.job.lora = nn::LoraSettings{.rank = 16};
  asked.workload = workload_of(one_image_, 4);
  asked.fixed = fixed(4, "none");
  PlanRequest undone = asked;
  undone.fixed = {};
  asked.card = undone.card = card_too_small_by_a_little(undone);
  ASSERT_FALSE(make_plan(undone).fits);
  const Plan plan = make_plan(asked);
  ASSERT_FALSE(plan.fits);
  bool found = false;
  for (const auto& suggestion : plan.suggestions) {
    SCOPED_TRACE(suggestion.text());
    const auto& arguments = suggestion.arguments;
    if (std::ranges::find(arguments, "training.micro_batch_size=auto") == arguments.end()) continue;
    EXPECT_THAT(arguments, Contains("memory.recompute=auto"));
    EXPECT_GT(arguments.size(), 2U);
    PlanRequest changed = asked;
    ASSERT_TRUE(apply(arguments, changed));
    EXPECT_TRUE(make_plan(changed).fits);
    found = true;
    break;
  }
  EXPECT_TRUE(found);
}

/// With a card that is as it is, as in a run, no flag is named.
TEST_F(PlanTest, ARunIsToldOfALargerCardInWords) {
  PlanRequest asked = request(3);
  asked.workload = workload_of(one_image_, 4);
  const Plan plan = make_plan(asked);
  ASSERT_FALSE(plan.fits);
  const Suggestion& last = plan.suggestions.back();
  EXPECT_THAT(last.arguments, IsEmpty());
  EXPECT_THAT(last.text(), HasSubstr("a card of "));
  for (const auto& suggestion : plan.suggestions) EXPECT_THAT(suggestion.text(), Not(HasSubstr("--")));
}

/// What needs most of two batches at the least choices counts, whichever needed more at others.
TEST_F(PlanTest, TheLeastIsThatOfTheWorstBatch) {
  PlanRequest asked = request(3);
  const SampleBatch texts{.shapes = {model_.shape({.images = 0, .text_tokens = 9000, .label_tokens = 3000})},
                          .first_id = "texts"};
  const SampleBatch pictures{.shapes = {model_.shape({.images = 2, .text_tokens = 64, .label_tokens = 16})},
                             .first_id = "pictures"};
  asked.workload = {.candidates = {texts, pictures}, .global_batch_size = 4};
  const Plan plan = make_plan(asked);
  ASSERT_FALSE(plan.fits);
  for (const auto& candidate : asked.workload.candidates) {
    EXPECT_LE(rehearse(asked, plan.chosen.choices, candidate).peaks.reserved_bytes, plan.chosen.peaks.reserved_bytes)
        << candidate.first_id;
  }
}

TEST_F(PlanTest, SamplesOfWhichNoCardHoldsTwoArePlannedOneByOne) {
  PlanRequest asked = request(24);
  asked.workload = workload_of(model_.shape({.images = 0, .text_tokens = 1'200'000}), 2);
  asked.with_remedies = false;
  const Plan plan = make_plan(asked);
  EXPECT_FALSE(plan.fits);
  EXPECT_EQ(plan.chosen.choices.micro_batch_size, 1);
}

INSTANTIATE_TEST_SUITE_P(Because, RefusedPlanTest,
                         testing::Values(RefusedCase{"TheCardIsTooSmall", 4, {}, {}, 2},
                                         RefusedCase{"TheLimitIsTooLow", 24, 4.0, {}, 2},
                                         RefusedCase{"TheMicroBatchIsFixed", 12, {}, fixed(4, "none"), 1},
                                         RefusedCase{"RecomputationIsFixed", 8, {}, fixed({}, "none"), 2},
                                         RefusedCase{"TheMarginIsMissing", 5.75, {}, {}, 1}),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace vlmtrain::planner
