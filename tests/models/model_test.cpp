#include "vlmtrain/models/model.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "parity/case.h"
#include "vlmtrain/data/sample/sample.h"

namespace vlmtrain::models {
namespace {

ImageFeatures make_features(int64_t first, int64_t count) {
  const at::Tensor rows = at::arange(first, first + count, at::kFloat).unsqueeze(1);
  return {.features = rows, .deepstack_features = {rows * 10, rows * 100}, .patch_features = rows * 4};
}

TEST(ImageFeaturesTest, JoinInvertsNarrow) {
  const ImageFeatures joined = ImageFeatures::concat({make_features(0, 3), {}, make_features(3, 4)});
  const ImageFeatures expected = make_features(0, 7);
  EXPECT_TRUE(at::equal(joined.features, expected.features));
  EXPECT_TRUE(at::equal(joined.patch_features, expected.patch_features));
  ASSERT_EQ(joined.deepstack_features.size(), 2);
  EXPECT_TRUE(at::equal(joined.deepstack_features[1], expected.deepstack_features[1]));

  const ImageFeatures selected = joined.narrow(2, 3);
  EXPECT_TRUE(at::equal(selected.features, make_features(2, 3).features));
  EXPECT_TRUE(at::equal(selected.deepstack_features[0], make_features(2, 3).deepstack_features[0]));
  EXPECT_FALSE(ImageFeatures::concat({{}, {}}).features.defined());
}

/// Features added to the image tokens after the first two text blocks, as in DeepStack families.
class DeepstackFeatures : public testing::Test {
 protected:
  struct Result {
    ModelOutput output;
    std::vector<at::Tensor> gradients;  // of the features
  };

  Result run(int64_t num_recomputed, const std::vector<at::Tensor>& added) {
    model_->set_recompute_block_counts({0, num_recomputed});
    ImageFeatures features = model_->get_all_image_features({batch_.pixel_values, batch_.patch_grids});
    features.deepstack_features = added;
    const OutputRequest request{.positions = at::arange(batch_.tokens(), at::kLong), .text_block_indices = {0, 1}};
    Result result{model_->compute_hidden_states(batch_, features, request, /*cache=*/nullptr), {}};
    if (!added.empty()) result.gradients = torch::autograd::grad({result.output.hidden_states.square().sum()}, added);
    return result;
  }

  const parity::Case case_{"full_heads_untied_tiles"};
  const std::unique_ptr<VisionLanguageModel> model_ = case_.load_model();
  const data::MicroBatch batch_ = data::collate(case_.samples());
};

TEST_F(DeepstackFeatures, AreAddedToTheirTokensWithGradients) {
  std::vector<at::Tensor> added;
  const int64_t width = model_->output_weight().size(1);
  for (int i = 0; i < 2; ++i) {
    added.push_back(at::randn({batch_.image_token_positions.numel(), width}).set_requires_grad(true));
  }
  const Result without_added = run(0, {}), with_added = run(0, added);
  EXPECT_TRUE(at::equal(with_added.output.text_block_outputs[0], without_added.output.text_block_outputs[0]))
      << "added after it";
  EXPECT_FALSE(at::allclose(with_added.output.text_block_outputs[1], without_added.output.text_block_outputs[1]));
  // Tokens before the first image token must not depend on it.
  const int64_t first = batch_.image_token_positions[0].item<int64_t>();
  EXPECT_TRUE(at::equal(with_added.output.hidden_states.narrow(0, 0, first),
                        without_added.output.hidden_states.narrow(0, 0, first)));

  const Result recomputed = run(model_->num_language_blocks(), added);
  EXPECT_TRUE(at::equal(recomputed.output.hidden_states, with_added.output.hidden_states));
  for (size_t i = 0; i < added.size(); ++i) {
    EXPECT_GT(with_added.gradients[i].abs().sum().item<double>(), 0);
    EXPECT_TRUE(at::allclose(recomputed.gradients[i], with_added.gradients[i], 1e-5, 1e-6)) << i;
  }
}

}  // namespace
}  // namespace vlmtrain::models
