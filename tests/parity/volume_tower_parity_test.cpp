#include <ATen/ops/adaptive_avg_pool3d.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <string>

#include "models/brain_llava/family.h"
#include "models/network/volume_transformer.h"
#include "parity/case.h"
#include "parity/deviations.h"

namespace vlmtrain::parity {
namespace {

using models::VolumeTransformer;
using models::VolumeTransformerConfig;

const std::filesystem::path& get_tower_folder() {
  static const auto folder = source_folder() / "tests/parity/data/volume_tower";
  return folder;
}

/// Results of MONAI's ViT, and the tower here with the same weights.
class VolumeTowerParity : public testing::TestWithParam<const char*> {
 protected:
  VolumeTowerParity() {
    for (const auto& parameter : store_.all())
      parameter.set_values(read_expected("parameter." + to_monai_name(parameter)));
  }

  at::Tensor read_expected(const std::string& name) const { return expected_.tensor(name); }
  static std::string to_monai_name(const nn::Parameter& parameter) { return parameter.name.substr(6); }

  struct Result {
    at::Tensor features;
    at::Tensor volume_gradient;
  };
  Result compute_result(int64_t num_recomputed) const {
    for (const auto& parameter : store_.all()) parameter.tensor.mutable_grad().reset();
    at::Tensor volumes = read_expected("volumes").clone().set_requires_grad(true);
    const at::Tensor features = tower_(volumes, {}, num_recomputed);
    torch::autograd::backward({features}, {read_expected("direction")});
    return {features.detach(), volumes.grad()};
  }

  const io::SafetensorsFile expected_{get_tower_folder() / (std::string(GetParam()) + ".safetensors")};
  nn::ParameterStore store_{at::TensorOptions(at::kFloat)};
  const VolumeTransformer tower_{nn::ParameterScope(store_, nn::Component::kVisionTower, "tower"),
                                 VolumeTransformerConfig::from_json(
                                     io::read_json(get_tower_folder() / "cases.json").at(GetParam()), "cases.json")};
};

TEST_P(VolumeTowerParity, FeaturesAndGradientsMatchMonai) {
  Deviations deviations;
  const auto [features, volume_gradient] = compute_result(0);
  ASSERT_EQ(features.sizes(), read_expected("features").sizes());
  deviations.expect_at_most(1e-5, relative_difference(features, read_expected("features")), "features", GetParam());
  deviations.expect_at_most(1e-5, largest_difference(volume_gradient, read_expected("gradient.volumes")),
                            "gradient of volumes", GetParam());
  for (const auto& parameter : store_.all()) {
    at::Tensor actual = parameter.tensor.grad();
    ASSERT_TRUE(actual.defined()) << parameter.name;
    at::Tensor expected = read_expected("gradient." + to_monai_name(parameter));
    if (parameter.name.ends_with("qkv.bias")) {
      // The key part's true gradient is zero.
      const auto actual_parts = actual.chunk(3), expected_parts = expected.chunk(3);
      EXPECT_LE(actual_parts[1].abs().max().item<double>(), 1e-4) << parameter.name;
      actual = at::cat({actual_parts[0], actual_parts[2]});
      expected = at::cat({expected_parts[0], expected_parts[2]});
    }
    deviations.expect_at_most(1e-5, largest_difference(actual, expected), "gradient", parameter.name);
  }
  deviations.report();
}

TEST_P(VolumeTowerParity, RecomputationIsBitwiseEqual) {
  const auto expected = compute_result(0);
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : store_.all()) gradients.push_back(parameter.tensor.grad());
  for (const int64_t num_recomputed : {int64_t{1}, tower_.num_blocks()}) {
    const auto repeated = compute_result(num_recomputed);
    EXPECT_TRUE(at::equal(repeated.features, expected.features));
    EXPECT_TRUE(at::equal(repeated.volume_gradient, expected.volume_gradient));
    for (size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_TRUE(at::equal(store_.all()[i].tensor.grad(), gradients[i])) << store_.all()[i].name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Towers, VolumeTowerParity, testing::Values("learned", "class_token", "qkv_bias"),
                         [](const auto& instance) { return instance.param; });

TEST(VolumePooling, MatchesAdaptiveAveragePooling) {
  using models::VolumeShape;
  for (const auto& [tokens, patches] :
       {std::pair(VolumeShape{4, 4, 4}, VolumeShape{6, 6, 6}), std::pair(VolumeShape{4, 4, 4}, VolumeShape{8, 8, 8}),
        std::pair(VolumeShape{2, 3, 1}, VolumeShape{7, 5, 4}), std::pair(VolumeShape{3, 2, 4}, VolumeShape{3, 2, 4})}) {
    const at::Tensor volumes = at::randn({2, 5, patches[0], patches[1], patches[2]});
    at::Tensor reference_input = volumes.clone().set_requires_grad(true),
               pooled_input = volumes.clone().set_requires_grad(true);
    const at::Tensor expected = at::adaptive_avg_pool3d(reference_input, {tokens[0], tokens[1], tokens[2]})
                                    .flatten(2)
                                    .transpose(1, 2)
                                    .flatten(0, 1);
    const at::Tensor actual =
        models::brain_llava::pool_patches(pooled_input.flatten(2).transpose(1, 2).flatten(0, 1), tokens, patches);
    ASSERT_EQ(actual.sizes(), expected.sizes());
    EXPECT_LE(relative_difference(actual.detach(), expected.detach()), 1e-6);
    const at::Tensor direction = at::randn_like(expected);
    torch::autograd::backward({expected}, {direction});
    torch::autograd::backward({actual}, {direction});
    EXPECT_LE(relative_difference(pooled_input.grad(), reference_input.grad()), 1e-6);
  }
}

}  // namespace
}  // namespace vlmtrain::parity
