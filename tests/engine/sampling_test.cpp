#include "vlmtrain/engine/sampling.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "vlmtrain/base/error.h"
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

/// tests/parity/reference/make_sampling.py
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
  EXPECT_NO_THROW(validate({}));
  EXPECT_NO_THROW(validate({.temperature = 0.7, .top_k = 50, .top_p = 0.9, .repetition_penalty = 1.1}));
  EXPECT_THROW(validate({.temperature = -1}), UserError);
  EXPECT_THROW(validate({.temperature = std::nan("")}), UserError);
  EXPECT_THROW(validate({.top_k = -1}), UserError);
  EXPECT_THROW(validate({.top_p = 0}), UserError);
  EXPECT_THROW(validate({.top_p = 1.1}), UserError);
  EXPECT_THROW(validate({.repetition_penalty = 0}), UserError);
}

}  // namespace
}  // namespace vlmtrain::engine
