#include "vlmtrain/engine/generation/generate.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "parity/case.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::engine {

namespace {

at::Tensor to_matrix(const nlohmann::json& rows) {
  const at::Tensor result = at::empty({std::ssize(rows), std::ssize(rows[0])}, at::TensorOptions(at::kDouble));
  auto* value = result.mutable_data_ptr<double>();
  for (const auto& row : rows) {
    for (const auto& entry : row) *value++ = entry.get<double>();
  }
  return result;
}

/// Reference values from tests/parity/reference/modules/sampling.py.
TEST(Sampling, MatchesTransformers) {
  const auto cases = io::read_json(std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/engine/data/sampling.json");
  ASSERT_GE(cases.size(), 8U);
  for (const auto& reference : cases) {
    const SamplingSettings settings{.temperature = reference.at("temperature"),
                                    .top_k = reference.at("top_k"),
                                    .top_p = reference.at("top_p"),
                                    .repetition_penalty = reference.at("repetition_penalty")};
    at::Tensor logits = to_matrix(reference.at("logits")).to(at::kFloat);
    if (settings.repetition_penalty != 1) {
      logits = penalize_repetition(logits, reference.at("occurred").get<std::vector<std::vector<int64_t>>>(),
                                   settings.repetition_penalty);
    }
    const at::Tensor actual = at::softmax(filter_logits(logits, settings), 1, at::kDouble);
    const at::Tensor expected = to_matrix(reference.at("probabilities"));
    const auto name = fmt::format("temperature {}, top_k {}, top_p {}, penalty {}", settings.temperature,
                                  settings.top_k, settings.top_p, settings.repetition_penalty);
    EXPECT_TRUE((actual > 0).equal(expected > 0)) << name << ": another set of tokens";
    EXPECT_LT((actual - expected).abs().max().item<double>(), 1e-6) << name;
  }
}

TEST(Sampling, PenaltyAppliesToTheSameSequenceOnly) {
  const at::Tensor logits = at::tensor({2.0F, -2.0F, 1.0F, 2.0F, -2.0F, 1.0F}).view({2, 3});
  const std::vector<std::vector<int64_t>> previous_tokens{{0, 1, 0}, {2}};
  const at::Tensor expected = at::tensor({1.0F, -4.0F, 1.0F, 2.0F, -2.0F, 0.5F}).view({2, 3});
  EXPECT_TRUE(penalize_repetition(logits, previous_tokens, 2).equal(expected));
}

TEST(Sampling, SamplesTokensInProportion) {
  constexpr double kRemovedLogit = -std::numeric_limits<double>::infinity();
  // Probabilities 0, 0.2, 0, 0.5, 0.3.
  const at::Tensor logits =
      at::tensor({kRemovedLogit, std::log(0.2), kRemovedLogit, std::log(0.5), std::log(0.3)}).view({1, 5});
  constexpr int64_t kDraws = 1000;
  const at::Tensor uniform = at::arange(kDraws, at::kDouble) / kDraws + 0.0005;
  const at::Tensor sampled = sample_tokens(logits.expand({kDraws, 5}), uniform);
  EXPECT_TRUE(at::bincount(sampled, {}, 5).equal(at::tensor({0, 200, 0, 500, 300}, at::kLong)));
  const auto sample_once = [&](double number) {
    return sample_tokens(logits, at::tensor({number}, at::kDouble)).item<int64_t>();
  };
  EXPECT_EQ(sample_once(0), 1);
  EXPECT_EQ(sample_once(std::nextafter(1.0, 0.0)), 4);
}

TEST(Sampling, RejectsSettingsOutOfRange) {
  EXPECT_NO_THROW(check_sampling_ranges({}));
  EXPECT_NO_THROW(check_sampling_ranges({.temperature = 0.7, .top_k = 50, .top_p = 0.9, .repetition_penalty = 1.1}));
  EXPECT_THROW(check_sampling_ranges({.temperature = -1}), UserError);
  EXPECT_THROW(check_sampling_ranges({.temperature = std::nan("")}), UserError);
  EXPECT_THROW(check_sampling_ranges({.top_k = -1}), UserError);
  EXPECT_THROW(check_sampling_ranges({.top_p = 0}), UserError);
  EXPECT_THROW(check_sampling_ranges({.top_p = 1.1}), UserError);
  EXPECT_THROW(check_sampling_ranges({.repetition_penalty = 0}), UserError);
}

/// Returns prompts of different lengths, with zero, one or two images.
class Generate : public testing::Test {
 protected:
  std::vector<data::Sample> prompts() const {
    const auto processor = case_.load_processor();
    const auto records = case_.records();
    std::vector<data::Sample> result;
    for (size_t i = 0; i < records.size(); ++i)
      result.push_back(processor->process_prompt(records[i], static_cast<int64_t>(i)));
    return result;
  }

  const parity::Case case_{"mixed_batch"};
  const std::unique_ptr<models::VisionLanguageModel> model_ = case_.load_model();
};

TEST_F(Generate, AnswersAreAsLongAsAllowedWithoutAnEnd) {
  for (const auto& answer : generate(*model_, prompts(), {.max_new_tokens = 5})) EXPECT_EQ(answer.size(), 5U);
  for (const auto& answer : generate(*model_, prompts(), {.max_new_tokens = 0})) EXPECT_TRUE(answer.empty());
  EXPECT_TRUE(generate(*model_, {}, {}).empty());
}

TEST_F(Generate, AnswersEndAtMaxLength) {
  const auto whole = generate(*model_, prompts(), {.max_new_tokens = 6});
  const auto all_prompts = prompts();
  const int64_t max_length = all_prompts[0].tokens() + 2;
  const auto answers = generate(*model_, all_prompts, {.max_new_tokens = 6, .max_length = max_length});
  for (size_t i = 0; i < all_prompts.size(); ++i) {
    auto expected = whole[i];
    expected.resize(static_cast<size_t>(std::clamp<int64_t>(max_length - all_prompts[i].tokens(), 0, 6)));
    EXPECT_EQ(answers[i], expected) << all_prompts[i].id;
  }
  EXPECT_EQ(answers[0].size(), 2U);
}

TEST_F(Generate, BatchMatchesEachPromptAlone) {
  const auto batch_answers = generate(*model_, prompts(), {.max_new_tokens = 10});
  std::set<std::vector<int64_t>> distinct_answers(batch_answers.begin(), batch_answers.end());
  EXPECT_EQ(distinct_answers.size(), batch_answers.size()) << "the prompts should have different answers";
  const auto all_prompts = prompts();
  for (size_t i = 0; i < all_prompts.size(); ++i)
    EXPECT_EQ(generate(*model_, {all_prompts[i]}, {.max_new_tokens = 10}).at(0), batch_answers[i]) << all_prompts[i].id;
}

TEST_F(Generate, StopsEachAnswerBeforeItsEndOfTurn) {
  const auto unbounded = generate(*model_, prompts(), {.max_new_tokens = 10});
  const int64_t end = unbounded[1][4];
  auto expected = unbounded;
  for (auto& answer : expected) answer.erase(std::ranges::find(answer, end), answer.end());
  EXPECT_LE(expected[1].size(), 4U);
  EXPECT_EQ(generate(*model_, prompts(), {.max_new_tokens = 10, .eos_token_ids = {end}}), expected);
}

TEST_F(Generate, AnAnswerMayBeEmpty) {
  const auto first = generate(*model_, prompts(), {.max_new_tokens = 1}).at(2).at(0);
  EXPECT_TRUE(generate(*model_, prompts(), {.max_new_tokens = 6, .eos_token_ids = {first}}).at(2).empty());
}

TEST_F(Generate, TheCacheChangesNothing) {
  const auto cached = generate(*model_, prompts(), {.max_new_tokens = 24});
  EXPECT_EQ(cached, generate(*model_, prompts(), {.max_new_tokens = 24, .use_cache = false}));
  // Answers that end at different steps leave the cache one by one.
  const std::vector<int64_t> ends{cached[0][9], cached[1][3], cached[2][16]};
  EXPECT_EQ(generate(*model_, prompts(), {.max_new_tokens = 24, .eos_token_ids = ends}),
            generate(*model_, prompts(), {.max_new_tokens = 24, .eos_token_ids = ends, .use_cache = false}));
}

TEST(GenerateWithDeltaNets, TwoHundredTokensAreEqualWithoutTheCache) {
  const parity::Case parity_case("qwen3_5_images");
  const auto model = parity_case.load_model();
  const auto processor = parity_case.load_processor();
  std::vector<data::Sample> prompts;
  for (const auto& record : parity_case.records())
    prompts.push_back(processor->process_prompt(record, std::ssize(prompts)));
  const auto answers = generate(*model, prompts, {.max_new_tokens = 200});
  EXPECT_EQ(answers, generate(*model, prompts, {.max_new_tokens = 200, .use_cache = false}));
  // Sequences that end at different steps take their states along.
  const std::vector<int64_t> ends{answers[0][9], answers[1][40]};
  EXPECT_EQ(generate(*model, prompts, {.max_new_tokens = 60, .eos_token_ids = ends}),
            generate(*model, prompts, {.max_new_tokens = 60, .eos_token_ids = ends, .use_cache = false}));
}

TEST_F(Generate, AnyOfTheEndTokensEndsAnAnswer) {
  const auto unbounded = generate(*model_, prompts(), {.max_new_tokens = 10});
  const std::vector<int64_t> ends{unbounded[0][3], unbounded[1][6]};
  const auto answers = generate(*model_, prompts(), {.max_new_tokens = 10, .eos_token_ids = ends});
  EXPECT_LE(answers[0].size(), 3U);
  EXPECT_LE(answers[1].size(), 6U);
  for (const auto& answer : answers) {
    for (const int64_t end : ends) EXPECT_EQ(std::ranges::count(answer, end), 0);
  }
}

TEST_F(Generate, PrecomputedImageFeaturesGiveTheSameAnswers) {
  const auto all_prompts = prompts();
  const auto batch = data::collate(all_prompts);
  const auto features = model_->get_all_image_features({batch.pixel_values, batch.patch_grids});
  EXPECT_EQ(generate(*model_, all_prompts, features, {.max_new_tokens = 6}),
            generate(*model_, all_prompts, {.max_new_tokens = 6}));
}

TEST_F(Generate, SampledAnswersDependOnTheSeedAlone) {
  const auto answers = [this](const SamplingSettings& sampling, bool use_cache = true) {
    return generate(*model_, prompts(), {.max_new_tokens = 12, .sampling = sampling, .use_cache = use_cache});
  };
  const auto first = answers({.temperature = 1, .top_p = 0.95, .seed = 1});
  EXPECT_EQ(first, answers({.temperature = 1, .top_p = 0.95, .seed = 1}));
  EXPECT_EQ(first, answers({.temperature = 1, .top_p = 0.95, .seed = 1}, /*use_cache=*/false));
  EXPECT_NE(first, answers({.temperature = 1, .top_p = 0.95, .seed = 2}));
  const auto greedy = answers({});
  EXPECT_NE(first, greedy);
  EXPECT_EQ(answers({.temperature = 3, .top_k = 1, .seed = 5}), greedy) << "one token to draw from";
  EXPECT_EQ(answers({.temperature = 1e-4, .seed = 5}), greedy);
}

TEST_F(Generate, RepetitionPenaltyPreventsRepetition) {
  const auto distinct = [](const std::vector<int64_t>& answer) {
    return std::set<int64_t>(answer.begin(), answer.end()).size();
  };
  const auto plain = generate(*model_, prompts(), {.max_new_tokens = 40});
  const auto penalized = generate(*model_, prompts(), {.max_new_tokens = 40, .sampling = {.repetition_penalty = 1e6}});
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(distinct(penalized[i]), 40U);
    EXPECT_LT(distinct(plain[i]), 40U);
  }
}

/// A model with five tokens that always predicts the same and records the requested positions.
class RecordingModel final : public models::VisionLanguageModel {
 public:
  RecordingModel() : VisionLanguageModel({}), weight_(at::zeros({5, 2})) {}
  models::ImageFeatures get_image_features(const models::VisionInput&, bool) const override { return {}; }
  models::ModelOutput compute_hidden_states(const data::MicroBatch& batch, const models::ImageFeatures&,
                                            const models::OutputRequest& request, nn::GenerationCache*) const override {
    positions.push_back(batch.position_ids);
    return {.hidden_states = at::zeros({request.positions.numel(), 2})};
  }
  nn::OutputProjection output_projection() const override { return {.weight = weight_}; }
  int64_t num_vision_blocks() const override { return 0; }
  int64_t num_language_blocks() const override { return 0; }

  mutable std::vector<at::Tensor> positions;

 private:
  at::Tensor weight_;
};

std::vector<int64_t> to_vector(const at::Tensor& ids) {
  const at::Tensor contiguous_ids = ids.contiguous();
  return {contiguous_ids.const_data_ptr<int64_t>(), contiguous_ids.const_data_ptr<int64_t>() + contiguous_ids.numel()};
}

TEST(GeneratePositions, ContinueAfterTheLargestPositionOnEveryAxis) {
  data::Sample axes, plain;
  axes.token_ids = {1, 2, 3};
  axes.label_mask.resize(3);
  axes.position_ids = {0, 1, 1, 0, 1, 6, 0, 1, 2};
  plain.token_ids = {1, 2};
  plain.label_mask.resize(2);

  const RecordingModel cached;
  generate(cached, {axes, plain}, {.max_new_tokens = 3});
  ASSERT_EQ(cached.positions.size(), 3U);
  EXPECT_EQ(to_vector(cached.positions[1]), (std::vector<int64_t>{7, 2, 7, 2, 7, 2}));
  EXPECT_EQ(to_vector(cached.positions[2]), (std::vector<int64_t>{8, 3, 8, 3, 8, 3}));

  const RecordingModel whole;
  generate(whole, {axes}, {.max_new_tokens = 3, .use_cache = false});
  EXPECT_EQ(to_vector(whole.positions[2]), (std::vector<int64_t>{0, 1, 1, 7, 8, 0, 1, 6, 7, 8, 0, 1, 2, 7, 8}));

  const RecordingModel one_axis;
  generate(one_axis, {plain}, {.max_new_tokens = 2});
  EXPECT_EQ(to_vector(one_axis.positions[1]), (std::vector<int64_t>{2}));
}

}  // namespace

}  // namespace vlmtrain::engine
