#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <gtest/gtest.h>

#include <span>

#include "parity/case.h"
#include "parity/deviations.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::parity {
namespace {

class HiddenStatesParity : public testing::TestWithParam<std::string> {
 protected:
  void expect_equal(const at::Tensor& actual, const std::string& name) {
    const at::Tensor expected = expected_.tensor(GetParam() + "." + name);
    ASSERT_EQ(actual.sizes(), expected.sizes()) << name;
    EXPECT_LE(relative_difference(actual, expected), 2e-6) << name;
  }

  const Case case_{GetParam()};
  const std::unique_ptr<models::VisionLanguageModel> model_ = case_.load_model();
  const std::vector<data::Sample> samples_ = case_.samples();
  const data::MicroBatch batch_ = data::collate(std::span(samples_).first(1));
  const io::SafetensorsFile expected_{source_folder() / "tests/parity/data/hidden_states.safetensors"};
};

/// In the second run, tiles and frames pass the tower one by one.
TEST_P(HiddenStatesParity, RequestedStatesMatchTransformers) {
  const at::NoGradGuard no_gradients;
  models::OutputRequest request{.positions = at::arange(batch_.tokens(), at::kLong), .with_patch_features = true};
  for (int64_t block = model_->num_language_blocks() - 2; block >= 0; --block)
    request.text_block_indices.push_back(block);
  for (const int64_t tiles_per_pass : {0, 1}) {
    model_->set_vision_tiles_per_pass(tiles_per_pass);
    const auto output = model_->forward(batch_, request);
    expect_equal(output.hidden_states, "final");
    expect_equal(output.patch_features, "dense");
    ASSERT_EQ(output.text_block_outputs.size(), request.text_block_indices.size());
    for (size_t i = 0; i < request.text_block_indices.size(); ++i) {
      expect_equal(output.text_block_outputs[i], fmt::format("text_block.{}", request.text_block_indices[i]));
    }
  }
}

TEST_P(HiddenStatesParity, StatesAreNotKeptByDefault) {
  const auto output = model_->forward(batch_, {.positions = batch_.label_positions});
  EXPECT_EQ(output.hidden_states.size(0), batch_.label_tokens());
  EXPECT_FALSE(output.patch_features.defined());
  EXPECT_TRUE(output.text_block_outputs.empty());
}

INSTANTIATE_TEST_SUITE_P(Cases, HiddenStatesParity, testing::Values("full_heads_untied_tiles", "qwen2_5_vl_windows"),
                         [](const auto& instance) { return instance.param; });

}  // namespace
}  // namespace vlmtrain::parity
