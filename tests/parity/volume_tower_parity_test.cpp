#include <ATen/ops/adaptive_avg_pool3d.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/randn_like.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <string>

#include "models/brain_llava/pooling.h"
#include "models/network/volume_transformer/volume_transformer.h"
#include "parity/case.h"
#include "parity/deviations.h"

namespace vlmtrain::parity {
namespace {

using models::VolumeTransformer;
using models::VolumeTransformerConfig;

const std::filesystem::path& tower_folder() {
  static const auto folder = source_folder() / "tests/parity/data/volume_tower";
  return folder;
}

/// What MONAI's ViT gave, and the same tower here with those weights.
class VolumeTowerParity : public testing::TestWithParam<const char*> {
 protected:
  VolumeTowerParity() {
    for (const auto& parameter : store_.all()) parameter.set_values(expected("parameter." + monai_name(parameter)));
  }

  at::Tensor expected(const std::string& name) const { return expected_.tensor(name); }
  static std::string monai_name(const nn::Parameter& parameter) { return parameter.name.substr(6); }

  struct Found {
    at::Tensor features;
    at::Tensor of_volumes;
  };
  Found run(int64_t recomputed) const {
    for (const auto& parameter : store_.all()) parameter.tensor.mutable_grad().reset();
    at::Tensor volumes = expected("volumes").clone().set_requires_grad(true);
    const at::Tensor features = tower_(volumes, {}, recomputed);
    torch::autograd::backward({features}, {expected("direction")});
    return {features.detach(), volumes.grad()};
  }

  const io::SafetensorsFile expected_{tower_folder() / (std::string(GetParam()) + ".safetensors")};
  nn::ParameterStore store_{at::TensorOptions(at::kFloat)};
  const VolumeTransformer tower_{
      nn::ParameterScope(store_, nn::Component::kVisionTower, "tower"),
      VolumeTransformerConfig::from_json(io::read_json(tower_folder() / "cases.json").at(GetParam()), "cases.json")};
};

TEST_P(VolumeTowerParity, FeaturesAndGradientsAreMonais) {
  Deviations deviations;
  const auto [features, of_volumes] = run(0);
  ASSERT_EQ(features.sizes(), expected("features").sizes());
  deviations.expect_at_most(1e-5, relative_difference(features, expected("features")), "features", GetParam());
  deviations.expect_at_most(1e-5, largest_difference(of_volumes, expected("gradient.volumes")), "gradient of volumes",
                            GetParam());
  for (const auto& parameter : store_.all()) {
    at::Tensor found = parameter.tensor.grad();
    ASSERT_TRUE(found.defined()) << parameter.name;
    at::Tensor wanted = expected("gradient." + monai_name(parameter));
    if (parameter.name.ends_with("qkv.bias")) {
      // Of the key's part the true gradient is zero.
      const auto parts = found.chunk(3), wanted_parts = wanted.chunk(3);
      EXPECT_LE(parts[1].abs().max().item<double>(), 1e-4) << parameter.name;
      found = at::cat({parts[0], parts[2]});
      wanted = at::cat({wanted_parts[0], wanted_parts[2]});
    }
    deviations.expect_at_most(1e-5, largest_difference(found, wanted), "gradient", parameter.name);
  }
  deviations.report();
}

TEST_P(VolumeTowerParity, RecomputationGivesTheSameBits) {
  const auto wanted = run(0);
  std::vector<at::Tensor> gradients;
  for (const auto& parameter : store_.all()) gradients.push_back(parameter.tensor.grad());
  for (const int64_t recomputed : {int64_t{1}, tower_.blocks()}) {
    const auto again = run(recomputed);
    EXPECT_TRUE(at::equal(again.features, wanted.features));
    EXPECT_TRUE(at::equal(again.of_volumes, wanted.of_volumes));
    for (size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_TRUE(at::equal(store_.all()[i].tensor.grad(), gradients[i])) << store_.all()[i].name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Towers, VolumeTowerParity, testing::Values("learned", "class_token", "qkv_bias"),
                         [](const auto& instance) { return instance.param; });

TEST(VolumePooling, IsPyTorchsAdaptiveMean) {
  using models::VolumeAxes;
  for (const auto& [tokens, patches] :
       {std::pair(VolumeAxes{4, 4, 4}, VolumeAxes{6, 6, 6}), std::pair(VolumeAxes{4, 4, 4}, VolumeAxes{8, 8, 8}),
        std::pair(VolumeAxes{2, 3, 1}, VolumeAxes{7, 5, 4}), std::pair(VolumeAxes{3, 2, 4}, VolumeAxes{3, 2, 4})}) {
    const at::Tensor volumes = at::randn({2, 5, patches[0], patches[1], patches[2]});
    at::Tensor first = volumes.clone().set_requires_grad(true), second = volumes.clone().set_requires_grad(true);
    const at::Tensor wanted =
        at::adaptive_avg_pool3d(first, {tokens[0], tokens[1], tokens[2]}).flatten(2).transpose(1, 2).flatten(0, 1);
    const at::Tensor found =
        models::brain_llava::pool(second.flatten(2).transpose(1, 2).flatten(0, 1), tokens, patches);
    ASSERT_EQ(found.sizes(), wanted.sizes());
    EXPECT_LE(relative_difference(found.detach(), wanted.detach()), 1e-6);
    const at::Tensor direction = at::randn_like(wanted);
    torch::autograd::backward({wanted}, {direction});
    torch::autograd::backward({found}, {direction});
    EXPECT_LE(relative_difference(second.grad(), first.grad()), 1e-6);
  }
}

}  // namespace
}  // namespace vlmtrain::parity
