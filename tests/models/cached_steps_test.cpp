#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "parity/case.h"
#include "parity/logits.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/generation_cache.h"

namespace vlmtrain::models {
namespace {

/// Returns the first `count` tokens. REQUIRES: they include all images.
data::Sample truncate_sample(data::Sample sample, int64_t count) {
  std::vector<int64_t> positions;
  for (int64_t axis = 0; axis < std::ssize(sample.position_ids) / sample.tokens(); ++axis) {
    const auto axis_begin = sample.position_ids.begin() + axis * sample.tokens();
    positions.insert(positions.end(), axis_begin, axis_begin + count);
  }
  sample.position_ids = std::move(positions);
  sample.token_ids.resize(static_cast<size_t>(count));
  sample.label_mask.resize(static_cast<size_t>(count));
  return sample;
}

class CachedSteps : public testing::TestWithParam<std::string> {};

TEST_P(CachedSteps, MatchFullForward) {
  const at::NoGradGuard no_gradients;
  const parity::Case reference(GetParam());
  const auto model = reference.load_model();
  const auto samples = reference.samples();
  const auto compute_logits = [&](const ModelOutput& output) {
    return parity::compute_logits(*model, output.hidden_states);
  };
  constexpr int64_t kSteps = 12;

  std::vector<data::Sample> prompts;
  std::vector<int64_t> capacities;
  std::vector<at::Tensor> expected;  // [kSteps + 1, vocabulary] of each sample
  for (const auto& sample : samples) {
    const auto full_batch = data::collate(std::span(&sample, 1));
    const int64_t prompt = sample.tokens() - kSteps;
    ASSERT_TRUE(sample.image_token_positions.empty() || sample.image_token_positions.back() < prompt);
    expected.push_back(
        compute_logits(model->forward(full_batch, {.positions = at::arange(prompt - 1, sample.tokens(), at::kLong)})));
    prompts.push_back(truncate_sample(sample, prompt));
    capacities.push_back(sample.tokens());
  }

  nn::GenerationCache cache(capacities, at::kCPU);
  const auto expect_row = [&](int64_t row, const at::Tensor& actual) {
    for (size_t i = 0; i < samples.size(); ++i) {
      const at::Tensor expected_row = expected[i][row];
      const double difference = (actual[static_cast<int64_t>(i)] - expected_row).norm().item<double>();
      EXPECT_LE(difference, 1e-5 * expected_row.norm().item<double>()) << samples[i].id << ", step " << row;
    }
  };
  const auto batch = data::collate(prompts);
  expect_row(0, compute_logits(model->compute_hidden_states(
                    batch, model->get_all_image_features({batch.pixel_values, batch.patch_grids}),
                    {.positions = batch.segments.offsets.slice(0, 1).to(at::kLong) - 1}, &cache)));
  for (int64_t step = 0; step < kSteps; ++step) {
    data::MicroBatch next_batch;
    std::vector<at::Tensor> tokens, positions;
    bool has_axes = false;
    for (const auto& sample : samples) {
      const int64_t index = sample.tokens() - kSteps + step;
      tokens.push_back(at::full({1}, sample.token_ids[static_cast<size_t>(index)], at::kLong));
      positions.push_back(data::collate(std::span(&sample, 1)).position_ids.narrow(-1, index, 1));
      has_axes |= positions.back().dim() == 2;
    }
    next_batch.token_ids = at::cat(tokens);
    for (auto& position : positions) {
      if (has_axes) position = position.expand({data::kNumPositionAxes, 1});
    }
    next_batch.position_ids = at::cat(positions, -1);
    next_batch.segments = nn::Segments::uniform(std::ssize(samples), 1, at::kCPU);
    expect_row(step + 1, compute_logits(model->compute_hidden_states(
                             next_batch, {}, {.positions = at::arange(std::ssize(samples), at::kLong)}, &cache)));
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CachedSteps, testing::ValuesIn(parity::case_names()),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace vlmtrain::models
