#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/adaptive_avg_pool3d.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <ATen/ops/zeros.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <map>
#include <string>
#include <vector>

#include "models/brain_llava/family.h"
#include "models/volume_samples.h"
#include "parity/deviations.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::models {

namespace {

using parity::Deviations;
using parity::relative_difference;
using testing::HasSubstr;
using testing::Not;

struct StepSettings {
  std::vector<size_t> sizes = {6};  ///< of micro-batches
  RecomputeBlockCounts recompute = {};
  int64_t volumes_per_pass = 0;
};

using TensorMap = std::map<std::string, at::Tensor>;

/// Returns the gradients of a split step's loss, the sum of the cross-entropies of all labels.
TensorMap compute_gradients(VisionLanguageModel& model, std::span<const VolumeSample> samples,
                            const StepSettings& settings) {
  for (const auto& parameter : model.parameters().all()) parameter.tensor.mutable_grad().reset();
  model.set_recompute_block_counts(settings.recompute);
  model.set_vision_tiles_per_pass(settings.volumes_per_pass);
  size_t first = 0;
  for (const size_t size : settings.sizes) {
    const auto micro_batch = samples.subspan(first, size);
    first += size;
    const auto batch = VolumeSamples::make_batch(micro_batch);
    const auto features = model.get_all_image_features(VolumeSamples::make_input(batch, micro_batch));
    const auto hidden =
        model.compute_hidden_states(batch, features, {.positions = batch.label_positions}, /*cache=*/nullptr)
            .hidden_states;
    const at::Tensor logits = at::matmul(hidden, model.output_weight().t());
    torch::autograd::backward({at::cross_entropy_loss(logits, batch.labels, {}, at::Reduction::Sum)}, {});
  }
  TensorMap gradients;
  for (const auto& parameter : model.parameters().all()) {
    if (parameter.tensor.grad().defined()) gradients[parameter.name] = parameter.tensor.grad().clone();
  }
  return gradients;
}

class BrainLlava : public testing::Test {
 protected:
  static void SetUpTestSuite() { data_ = std::make_unique<VolumeSamples>(); }
  static void TearDownTestSuite() { data_.reset(); }

  std::unique_ptr<VisionLanguageModel> model() const {
    auto loaded = load_model(data_->checkpoint(), at::kCPU, at::kFloat);
    const at::NoGradGuard no_gradients;
    for (const auto& parameter : loaded->parameters().all()) {
      if (parameter.name == kTable) parameter.tensor.normal_();
    }
    return loaded;
  }

  static at::Tensor find_parameter(const VisionLanguageModel& model, const std::string& name) {
    for (const auto& parameter : model.parameters().all()) {
      if (parameter.name == name) return parameter.tensor;
    }
    throw std::out_of_range(name);
  }

  static at::Tensor compute_features(const VisionLanguageModel& model, const at::Tensor& volumes,
                                     const at::Tensor& modalities) {
    return model.get_all_image_features({.pixel_values = volumes, .patch_grids = {}, .modalities = modalities})
        .features;
  }

  static void expect_same(const TensorMap& actual, const TensorMap& expected, const std::string& description,
                          Deviations& deviations, double bound = 1e-5) {
    ASSERT_EQ(actual.size(), expected.size()) << description;
    for (const auto& [name, gradient] : expected) {
      deviations.expect_at_most(bound, relative_difference(actual.at(name), gradient), "gradient",
                                description + ", " + name);
    }
  }

  static constexpr const char* kTable = "vision_tower.modality_embeddings";
  static std::unique_ptr<VolumeSamples> data_;
  const std::vector<VolumeSample> samples_ = VolumeSamples::samples();
};

std::unique_ptr<VolumeSamples> BrainLlava::data_;

TEST_F(BrainLlava, GradientsAreIndependentOfMicroBatches) {
  const auto loaded = model();
  const auto expected = compute_gradients(*loaded, samples_, {});
  ASSERT_EQ(std::ssize(expected), std::ssize(loaded->parameters().all()));
  Deviations deviations;
  for (const std::vector<size_t>& sizes : {std::vector<size_t>{1, 1, 1, 1, 1, 1}, {2, 2, 2}, {1, 3, 2}, {6}}) {
    for (const int64_t volumes : {0, 1, 2}) {
      expect_same(compute_gradients(*loaded, samples_, {.sizes = sizes, .volumes_per_pass = volumes}), expected,
                  fmt::format("{} micro-batches, {} volumes a pass", sizes.size(), volumes), deviations);
    }
  }
  deviations.report();
}

TEST_F(BrainLlava, RecomputationIsBitwiseEqual) {
  const auto loaded = model();
  EXPECT_EQ(loaded->num_vision_blocks(), 6);
  EXPECT_EQ(loaded->num_language_blocks(), 4);
  for (const int64_t volumes : {0, 2}) {
    const auto expected = compute_gradients(*loaded, samples_, {.volumes_per_pass = volumes});
    for (const RecomputeBlockCounts blocks :
         {RecomputeBlockCounts{.vision = 3, .language = 0}, {.vision = 6, .language = 4}}) {
      const auto actual = compute_gradients(*loaded, samples_, {.recompute = blocks, .volumes_per_pass = volumes});
      ASSERT_EQ(actual.size(), expected.size());
      for (const auto& [name, gradient] : expected) EXPECT_TRUE(at::equal(actual.at(name), gradient)) << name;
    }
  }
}

TEST_F(BrainLlava, FrozenTowerHasNoGradients) {
  const auto loaded = model();
  freeze_parts(*loaded, {.vision_tower = true});
  const auto gradients = compute_gradients(*loaded, samples_, {});
  for (const auto& [name, gradient] : gradients) EXPECT_THAT(name, Not(HasSubstr("vision_tower")));
  EXPECT_TRUE(gradients.contains("multi_modal_projector.linear_1.weight"));
  EXPECT_TRUE(gradients.contains("language_model.model.layers.3.mlp.down_proj.weight"));
}

TEST_F(BrainLlava, AdapterGradientsAreIndependentOfMicroBatches) {
  // float64, so that only the split can cause a difference: adapters of this size amplify float32
  // rounding.
  const auto adapted = build_model(data_->checkpoint(), at::kCPU, at::kDouble, nn::LoraSettings{.rank = 2});
  load_weights(*adapted, data_->checkpoint());
  initialize_adapter(*adapted, /*seed=*/1);
  const at::NoGradGuard no_gradients;
  for (const auto& parameter : adapted->parameters().all()) {
    if (parameter.is_adapter) parameter.tensor.normal_(0, 0.1);
  }
  const at::AutoGradMode enable_gradients(true);
  const auto expected = compute_gradients(*adapted, samples_, {});
  int64_t num_tower = 0, num_text = 0;
  for (const auto& [name, gradient] : expected) {
    EXPECT_THAT(name, HasSubstr("lora_"));
    num_tower += name.starts_with("vision_tower.blocks.") ? 1 : 0;
    num_text += name.starts_with("language_model.model.layers.") ? 1 : 0;
  }
  EXPECT_EQ(num_tower, 6 * 4 * 2) << "qkv, out_proj, linear1, linear2 of each block";
  EXPECT_EQ(num_text, 4 * 7 * 2);
  Deviations deviations;
  expect_same(compute_gradients(*adapted, samples_, {.sizes = {1, 3, 2}, .volumes_per_pass = 1}), expected, "cut",
              deviations, 1e-10);
  deviations.report();
}

TEST_F(BrainLlava, TextOnlyStepTrainsLanguageModelOnly) {
  const auto loaded = model();
  const std::vector<VolumeSample> text_samples{samples_[1], samples_[5]};
  const auto gradients = compute_gradients(*loaded, text_samples, {.sizes = {2}});
  for (const auto& [name, gradient] : gradients) EXPECT_TRUE(name.starts_with("language_model.")) << name;
  EXPECT_FALSE(gradients.empty());
}

TEST_F(BrainLlava, ModalityEmbeddingIsAddedToEveryPatch) {
  const auto loaded = model();
  const at::Tensor volumes = at::randn({2, 1, 48, 64, 80});
  const at::Tensor features = compute_features(*loaded, volumes, at::tensor({2, 2}, at::kLong));
  EXPECT_EQ(features.sizes(), (std::vector<int64_t>{2 * VolumeSamples::kTokens, 128}));
  const at::Tensor direction = at::randn_like(features);
  torch::autograd::backward({features}, {direction});
  const at::Tensor table = find_parameter(*loaded, kTable),
                   bias = find_parameter(*loaded, "vision_tower.patch_embedding.patch_embeddings.bias");
  EXPECT_LE(relative_difference(table.grad()[2], bias.grad()), 1e-6);
  EXPECT_TRUE(at::equal(table.grad().narrow(0, 0, 2), at::zeros({2, 96}))) << "modalities that do not occur";

  const at::NoGradGuard no_gradients;
  bias.add_(table[2]);
  table.zero_();
  EXPECT_LE(relative_difference(compute_features(*loaded, volumes, {}), features.detach()), 1e-6);
}

TEST_F(BrainLlava, MissingModalitiesAreUnknown) {
  const auto loaded = model();
  const at::NoGradGuard no_gradients;
  const at::Tensor volumes = at::randn({2, 1, 48, 48, 48});
  const at::Tensor unknown = compute_features(*loaded, volumes, at::zeros({2}, at::kLong));
  EXPECT_TRUE(at::equal(compute_features(*loaded, volumes, {}), unknown));
  EXPECT_FALSE(at::equal(compute_features(*loaded, volumes, at::tensor({0, 1}, at::kLong)), unknown));
}

TEST_F(BrainLlava, HalfVolumesEqualFloatVolumes) {
  const auto loaded = model();
  const at::NoGradGuard no_gradients;
  const at::Tensor volumes = at::randn({1, 1, 48, 48, 48}).to(at::kHalf);
  EXPECT_TRUE(at::equal(compute_features(*loaded, volumes, {}), compute_features(*loaded, volumes.to(at::kFloat), {})));
}

TEST_F(BrainLlava, DenseFeaturesAreOfPatches) {
  const auto loaded = model();
  const at::NoGradGuard no_gradients;
  const auto features =
      loaded->get_all_image_features({.pixel_values = at::randn({3, 1, 48, 48, 96}), .patch_grids = {}},
                                     /*rows_per_pass=*/2, /*with_patch_features=*/true);
  EXPECT_EQ(features.patch_features.sizes(), (std::vector<int64_t>{3 * 3 * 3 * 6, 96}));
  EXPECT_EQ(features.features.size(0), 3 * VolumeSamples::kTokens);
}

}  // namespace

}  // namespace vlmtrain::models

namespace vlmtrain::models::brain_llava {

namespace {

TEST(VolumePooling, MatchesAdaptiveAveragePooling) {
  for (const VolumeShape& patches : {VolumeShape{4, 4, 4}, VolumeShape{6, 6, 6}, VolumeShape{7, 5, 8}}) {
    const at::Tensor features = at::randn({2 * patches[0] * patches[1] * patches[2], 3});
    const at::Tensor volumes =
        features.view({2, patches[0], patches[1], patches[2], 3}).permute({0, 4, 1, 2, 3}).contiguous();
    const at::Tensor expected = at::adaptive_avg_pool3d(volumes, {4, 3, 2}).permute({0, 2, 3, 4, 1}).reshape({-1, 3});
    EXPECT_LT(parity::relative_difference(pool_patches(features, {4, 3, 2}, patches), expected), 1e-6);
  }
}

/// Plans of host memory run the step on the meta device.
TEST(VolumePooling, RunsOnTheMetaDevice) {
  const at::Tensor features = at::empty({2 * 6 * 6 * 6, 3}, at::TensorOptions().device(at::kMeta));
  EXPECT_EQ(pool_patches(features, {3, 3, 3}, {6, 6, 6}).sizes(), (std::vector<int64_t>{2 * 27, 3}));
}

}  // namespace

}  // namespace vlmtrain::models::brain_llava
