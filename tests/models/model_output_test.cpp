#include "vlmtrain/models/model_output.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "parity/case.h"
#include "vlmtrain/data/micro_batch.h"

namespace vlmtrain::models {
namespace {

ImageFeatures numbered(int64_t first, int64_t count) {
  const at::Tensor rows = at::arange(first, first + count, at::kFloat).unsqueeze(1);
  return {.features = rows, .behind_text_blocks = {rows * 10, rows * 100}, .dense = rows * 4};
}

TEST(ImageFeaturesTest, PartsJoinedAreTheWhole) {
  const ImageFeatures whole = ImageFeatures::join({numbered(0, 3), {}, numbered(3, 4)});
  const ImageFeatures wanted = numbered(0, 7);
  EXPECT_TRUE(at::equal(whole.features, wanted.features));
  EXPECT_TRUE(at::equal(whole.dense, wanted.dense));
  ASSERT_EQ(whole.behind_text_blocks.size(), 2);
  EXPECT_TRUE(at::equal(whole.behind_text_blocks[1], wanted.behind_text_blocks[1]));

  const ImageFeatures part = whole.narrow(2, 3);
  EXPECT_TRUE(at::equal(part.features, numbered(2, 3).features));
  EXPECT_TRUE(at::equal(part.behind_text_blocks[0], numbered(2, 3).behind_text_blocks[0]));
  EXPECT_FALSE(ImageFeatures::join({{}, {}}).features.defined());
}

/// Features for the image tokens behind the first two text blocks, as a DeepStack family gives them.
class FeaturesBehindTextBlocks : public testing::Test {
 protected:
  struct Result {
    ModelOutput output;
    std::vector<at::Tensor> gradients;  // of the features
  };

  Result run(int64_t recomputed, const std::vector<at::Tensor>& added) {
    model_->set_recompute({0, recomputed});
    ImageFeatures features = model_->all_image_features({batch_.pixel_values, batch_.grids});
    features.behind_text_blocks = added;
    const OutputRequest request{.positions = at::arange(batch_.tokens(), at::kLong), .text_blocks = {0, 1}};
    Result result{model_->hidden_states(batch_, features, request, /*cache=*/nullptr), {}};
    if (!added.empty()) result.gradients = torch::autograd::grad({result.output.hidden.square().sum()}, added);
    return result;
  }

  const parity::Case case_{"full_heads_untied_tiles"};
  const std::unique_ptr<VisionLanguageModel> model_ = case_.load_model();
  const data::MicroBatch batch_ = data::collate(case_.samples());
};

TEST_F(FeaturesBehindTextBlocks, AreAddedToTheirTokensAndGetGradients) {
  std::vector<at::Tensor> added;
  const int64_t width = model_->output_weight().size(1);
  for (int i = 0; i < 2; ++i) {
    added.push_back(at::randn({batch_.image_positions.numel(), width}).set_requires_grad(true));
  }
  const Result without = run(0, {}), with = run(0, added);
  EXPECT_TRUE(at::equal(with.output.text_blocks[0], without.output.text_blocks[0])) << "added behind it";
  EXPECT_FALSE(at::allclose(with.output.text_blocks[1], without.output.text_blocks[1]));
  // What comes before the first image token cannot know of it.
  const int64_t first = batch_.image_positions[0].item<int64_t>();
  EXPECT_TRUE(at::equal(with.output.hidden.narrow(0, 0, first), without.output.hidden.narrow(0, 0, first)));

  const Result recomputed = run(model_->language_blocks(), added);
  EXPECT_TRUE(at::equal(recomputed.output.hidden, with.output.hidden));
  for (size_t i = 0; i < added.size(); ++i) {
    EXPECT_GT(with.gradients[i].abs().sum().item<double>(), 0);
    EXPECT_TRUE(at::allclose(recomputed.gradients[i], with.gradients[i], 1e-5, 1e-6)) << i;
  }
}

}  // namespace
}  // namespace vlmtrain::models
