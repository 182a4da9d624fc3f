#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <string>

#include "models/network/mask/mask_decoder/mask_decoder.h"
#include "models/network/mask/sam_vit/sam_vit.h"
#include "parity/case.h"
#include "parity/deviations.h"

namespace vlmtrain::parity {
namespace {

using models::MaskDecoder;
using models::MaskDecoderConfig;
using models::SamVit;
using models::SamVitConfig;

const std::filesystem::path& sam_folder() {
  static const auto folder = source_folder() / "tests/parity/data/sam";
  return folder;
}

/// What transformers gave for one module, and the same module here with those weights.
class SamCase : public testing::Test {
 protected:
  void read(const std::string& name) { expected_.emplace(sam_folder() / (name + ".safetensors")); }

  at::Tensor expected(const std::string& name) const { return expected_->tensor(name); }

  at::Tensor leaf(const std::string& name) const { return expected(name).clone().set_requires_grad(true); }

  static std::string name_below_scope(const nn::Parameter& parameter) { return parameter.name.substr(4); }

  /// Every parameter is in the file.
  void set_values() const {
    for (const auto& parameter : store_.all())
      parameter.set_values(expected("parameter." + name_below_scope(parameter)));
  }

  /// A key's bias that adds the same to all scores of a query has a gradient of zero, of which float32 sees noise.
  void expect_gradients(const std::string& kind) {
    for (const auto& parameter : store_.all()) {
      if (!parameter.tensor.requires_grad()) continue;
      const at::Tensor found = parameter.tensor.grad();
      ASSERT_TRUE(found.defined()) << parameter.name;
      const at::Tensor wanted = expected("gradient." + name_below_scope(parameter));
      if (parameter.name.ends_with("k_proj.bias")) {
        EXPECT_LE(found.abs().max().item<double>(), 1e-4) << parameter.name;
      } else {
        deviations_.expect_at_most(1e-5, largest_difference(found, wanted), kind, parameter.name);
      }
    }
  }

  void clear_gradients() const {
    for (const auto& parameter : store_.all()) parameter.tensor.mutable_grad().reset();
  }

  const nlohmann::json cases_ = io::read_json(sam_folder() / "cases.json");
  nn::ParameterStore store_{at::TensorOptions(at::kFloat)};
  const nn::ParameterScope scope_{store_, nn::Component::kMaskEncoder, "sam"};
  std::optional<io::SafetensorsFile> expected_;
  Deviations deviations_;
};

class SamVitParity : public SamCase, public testing::WithParamInterface<const char*> {};

TEST_P(SamVitParity, FeaturesAndGradientsAreTransformers) {
  const std::string name = GetParam();
  read(name);
  const auto config = SamVitConfig::from_json(cases_.at("encoders").at(name), "cases.json");
  const SamVit encoder(scope_, config);
  set_values();
  const at::Tensor direction = expected("direction");
  const auto run = [&](int64_t recomputed) {
    clear_gradients();
    at::Tensor pixels = leaf("pixels");
    const at::Tensor features = encoder(pixels, recomputed);
    torch::autograd::backward({features}, {direction});
    return std::pair(features.detach(), pixels.grad());
  };
  const auto [features, of_pixels] = run(0);
  ASSERT_EQ(features.sizes(), expected("features").sizes());
  deviations_.expect_at_most(1e-5, relative_difference(features, expected("features")), "features", name);
  deviations_.expect_at_most(1e-5, largest_difference(of_pixels, expected("gradient.pixels")), "gradient of pixels",
                             name);
  expect_gradients("gradient");
  deviations_.report();

  std::vector<at::Tensor> gradients;
  for (const auto& parameter : store_.all()) gradients.push_back(parameter.tensor.grad());
  for (const int64_t recomputed : {int64_t{1}, encoder.blocks()}) {
    const auto [again, of_pixels_again] = run(recomputed);
    EXPECT_TRUE(at::equal(again, features));
    EXPECT_TRUE(at::equal(of_pixels_again, of_pixels));
    for (size_t i = 0; i < gradients.size(); ++i) {
      EXPECT_TRUE(at::equal(store_.all()[i].tensor.grad(), gradients[i])) << store_.all()[i].name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Encoders, SamVitParity, testing::Values("windows", "no_positions"),
                         [](const auto& instance) { return instance.param; });

class MaskDecoderParity : public SamCase {
 protected:
  MaskDecoderParity() {
    read("decoder");
    decoder_.emplace(scope_, MaskDecoderConfig::from_json(cases_.at("decoder"), "cases.json"));
    set_values();
  }

  at::Tensor logits(const at::Tensor& features, const at::Tensor& prompts, const at::Tensor& picture_of_mask) const {
    return (*decoder_)(features, cases_.at("side"), prompts, picture_of_mask);
  }

  std::optional<MaskDecoder> decoder_;
};

TEST_F(MaskDecoderParity, MasksAndGradientsAreTransformers) {
  at::Tensor features = leaf("features"), prompts = leaf("prompts");
  const at::Tensor found = logits(features, prompts, expected("picture_of_mask"));
  ASSERT_EQ(found.sizes(), expected("logits").sizes());
  EXPECT_EQ(found.scalar_type(), at::kFloat);
  torch::autograd::backward({found}, {expected("direction")});
  deviations_.expect_at_most(1e-5, relative_difference(found.detach(), expected("logits")), "logits", "");
  deviations_.expect_at_most(1e-5, largest_difference(features.grad(), expected("gradient.features")),
                             "gradient of features", "");
  deviations_.expect_at_most(1e-5, largest_difference(prompts.grad(), expected("gradient.prompts")),
                             "gradient of prompts", "");
  expect_gradients("gradient");
  deviations_.report();
}

TEST_F(MaskDecoderParity, MasksAreIndependentOfEachOther) {
  const at::Tensor order = at::tensor({4, 0, 5, 2}, at::kLong);
  const at::Tensor found = logits(expected("features"), expected("prompts").index_select(0, order),
                                  expected("picture_of_mask").index_select(0, order));
  EXPECT_LE(relative_difference(found.detach(), expected("logits").index_select(0, order)), 1e-5);
}

TEST_F(MaskDecoderParity, EveryParameterIsOfTheDecoderOrConstant) {
  for (const auto& parameter : store_.all()) {
    const bool is_constant = parameter.name == "sam.shared_image_embedding.positional_embedding";
    EXPECT_EQ(parameter.component, is_constant ? nn::Component::kConstant : nn::Component::kMaskDecoder)
        << parameter.name;
  }
}

}  // namespace
}  // namespace vlmtrain::parity
