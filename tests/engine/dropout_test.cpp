#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <ostream>

#include "engine/batch_of_eight.h"
#include "engine/small_step.h"
#include "parity/deviations.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::engine {
namespace {

struct SplitOptions {
  int64_t micro_batch_size = 1;
  int64_t vision_tiles_per_pass = 0;
  models::RecomputeBlockCounts recompute = {};
  std::vector<int64_t> micro_batches = {};  ///< as in SmallStep
  std::vector<int64_t> order = {};          ///< as in SmallStep
};

struct DropoutCase {
  const char* name;
  const char* parity_case;
  bool use_dora = false;
};

void PrintTo(const DropoutCase& dropout_case, std::ostream* out) {
  *out << dropout_case.name;
}

/// Custom kernels, emulated in one run of these tests, do not support fp64.
at::ScalarType get_model_dtype() {
  return kernels::is_available(kernels::Kernel::kDropout, at::empty({1})) ? at::kFloat : at::kDouble;
}

class DropoutTest : public testing::TestWithParam<DropoutCase> {
 protected:
  static constexpr models::RecomputeBlockCounts kAllBlocks{99, 99};

  DropoutTest() {
    const parity::Case reference(GetParam().parity_case);
    samples_ =
        reference.checkpoint().parent_path().filename() == "mixed_batch" ? batch_of_eight() : reference.samples();
    for (size_t i = 0; i < samples_.size(); ++i) samples_[i].seed = 100 + i;
    model_ = models::build_model(reference.checkpoint(), at::kCPU, get_model_dtype(),
                                 nn::LoraSettings{.rank = 4, .dropout = 0.1, .use_dora = GetParam().use_dora});
    models::load_weights(*model_, reference.checkpoint());
    models::initialize_adapter(*model_, /*seed=*/1);
    at::manual_seed(2);
    for (const auto& parameter : model_->parameters().all()) {
      if (parameter.name.ends_with("lora_B.weight")) parameter.tensor.detach().normal_(0, 0.1);
    }
  }

  int64_t num_samples() const { return std::ssize(samples_); }

  /// Returns loss and gradients with adapters on all Linears and with dropout.
  Gradients gradients(const SplitOptions& options) {
    model_->set_recompute_block_counts(options.recompute);
    model_->set_vision_tiles_per_pass(options.vision_tiles_per_pass);
    Gradients actual;
    const SmallStep step{
        .micro_batch_size = options.micro_batch_size, .micro_batches = options.micro_batches, .order = options.order};
    actual.loss = accumulate_gradients(*model_, samples_, step).loss.item<double>();
    for (const auto& parameter : model_->parameters().all()) {
      if (!parameter.is_adapter) continue;
      actual.by_name[parameter.name] = parameter.tensor.grad();
      parameter.tensor.mutable_grad().reset();
    }
    return actual;
  }

  std::vector<data::Sample> samples_;
  std::unique_ptr<models::VisionLanguageModel> model_;
};

void expect_same(const Gradients& actual, const Gradients& expected, const std::string& label) {
  // Other masks change gradients by more than 1e-3; see GradientDiffersWithASamplesSeed.
  const double bound = get_model_dtype() == at::kDouble ? 1e-12 : 2e-5;
  EXPECT_NEAR(actual.loss / expected.loss, 1, 1e-6) << label;
  for (const auto& [name, gradient] : expected.by_name) {
    ASSERT_GT(gradient.abs().max().item<double>(), 0) << name;
    EXPECT_LT(parity::relative_difference(actual.by_name.at(name), gradient), bound) << label << ", " << name;
  }
}

TEST_P(DropoutTest, GradientDoesNotDependOnTheMicroBatches) {
  const auto expected = gradients({.micro_batch_size = num_samples()});
  for (const int64_t size : {1, 2, 3, 4}) {
    expect_same(gradients({.micro_batch_size = size}), expected, fmt::format("micro-batches of {}", size));
  }
}

/// Micro-batches of any size and composition, as the split by memory makes them.
TEST_P(DropoutTest, GradientDoesNotDependOnWhichSamplesAreTogether) {
  const auto expected = gradients({.micro_batch_size = num_samples()});
  ASSERT_GT(num_samples(), 1);
  auto sizes = num_samples() > 2 ? std::vector<int64_t>{num_samples() - 2, 1, 1} : std::vector<int64_t>{1, 1};
  for (const uint64_t seed : {uint64_t{1}, uint64_t{2}, uint64_t{3}}) {
    const auto order = make_random_permutation(num_samples(), seed);
    std::ranges::rotate(sizes, sizes.begin() + 1);
    expect_same(gradients({.micro_batches = sizes, .order = order}), expected,
                fmt::format("{} of {}", fmt::join(sizes, "+"), fmt::join(order, ", ")));
  }
}

TEST_P(DropoutTest, GradientDoesNotDependOnTheVisionPasses) {
  const auto expected = gradients({.micro_batch_size = num_samples()});
  for (const int64_t tiles : {1, 3, 40}) {
    expect_same(gradients({.micro_batch_size = 2, .vision_tiles_per_pass = tiles}), expected,
                fmt::format("passes of {} tiles", tiles));
  }
}

TEST_P(DropoutTest, RecomputationGivesTheSameBits) {
  const auto expected = gradients({.micro_batch_size = 2});
  const auto actual = gradients({.micro_batch_size = 2, .recompute = kAllBlocks});
  EXPECT_EQ(actual.loss, expected.loss);
  for (const auto& [name, gradient] : expected.by_name) {
    EXPECT_TRUE(at::equal(actual.by_name.at(name), gradient)) << name;
  }
}

TEST_P(DropoutTest, GradientDiffersWithASamplesSeed) {
  const auto first = gradients({.micro_batch_size = 2});
  for (auto& sample : samples_) sample.seed += 1000;
  const auto second = gradients({.micro_batch_size = 2});
  for (const auto& [name, gradient] : first.by_name) {
    EXPECT_GT(parity::relative_difference(second.by_name.at(name), gradient), 1e-3) << name;
  }
}

TEST_P(DropoutTest, NothingIsDroppedInEvaluation) {
  const auto loss = [this] {
    const at::NoGradGuard no_gradients;
    return accumulate_gradients(*model_, samples_, {.micro_batch_size = 2}).loss.item<double>();
  };
  const double evaluation_loss = loss();
  for (auto& sample : samples_) sample.seed += 1000;
  EXPECT_EQ(loss(), evaluation_loss);
  EXPECT_NE(gradients({.micro_batch_size = 2}).loss, evaluation_loss);
}

INSTANTIATE_TEST_SUITE_P(
    Models, DropoutTest,
    testing::Values(DropoutCase{"Idefics3", "mixed_batch"},
                    DropoutCase{"Idefics3Dora", "mixed_batch", /*use_dora=*/true},
                    DropoutCase{"LlavaClassToken", "llava_clip_llama"}, DropoutCase{"Qwen2VlVideo", "qwen2_5_vl_video"},
                    DropoutCase{"Qwen2VlWindows", "qwen2_5_vl_mixed"}, DropoutCase{"InternVl", "internvl3_5_mixed"},
                    DropoutCase{"Qwen3VlDeepStack", "qwen3_vl_mixed"}, DropoutCase{"Qwen3_5", "qwen3_5_images"},
                    DropoutCase{"Gemma3Crops", "gemma3_crops"}, DropoutCase{"Gemma4", "gemma4_tower"},
                    DropoutCase{"Gemma4PerLayer", "gemma4_per_layer"}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace vlmtrain::engine
