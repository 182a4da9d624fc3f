#include <ATen/ops/equal.h>
#include <ATen/ops/tensor.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <optional>
#include <string>

#include "models/network/mask_decoder.h"
#include "models/network/sam_vit.h"
#include "parity/case.h"
#include "parity/deviations.h"

namespace vlmtrain::parity {
namespace {

using models::MaskDecoder;
using models::MaskDecoderConfig;
using models::SamVit;
using models::SamVitConfig;

const std::filesystem::path& get_sam_folder() {
  static const auto folder = source_folder() / "tests/parity/data/sam";
  return folder;
}

/// Results of transformers for one module, and the module here with the same weights.
class SamCase : public testing::Test {
 protected:
  void open_reference(const std::string& name) { expected_.emplace(get_sam_folder() / (name + ".safetensors")); }

  at::Tensor read_expected(const std::string& name) const { return expected_->tensor(name); }

  at::Tensor read_leaf(const std::string& name) const { return read_expected(name).clone().set_requires_grad(true); }

  static std::string strip_scope(const nn::Parameter& parameter) { return parameter.name.substr(4); }

  /// Sets the weights. Expects every parameter in the file.
  void set_values() const {
    for (const auto& parameter : store_.all())
      parameter.set_values(read_expected("parameter." + strip_scope(parameter)));
  }

  /// Compares gradients. A key bias adds the same number to all scores of a query, so its true
  /// gradient is zero and float32 computes rounding errors.
  void expect_gradients(const std::string& kind) {
    for (const auto& parameter : store_.all()) {
      if (!parameter.tensor.requires_grad()) continue;
      const at::Tensor actual = parameter.tensor.grad();
      ASSERT_TRUE(actual.defined()) << parameter.name;
      const at::Tensor expected_gradient = read_expected("gradient." + strip_scope(parameter));
      if (parameter.name.ends_with("k_proj.bias")) {
        EXPECT_LE(actual.abs().max().item<double>(), 1e-4) << parameter.name;
      } else {
        deviations_.expect_at_most(1e-5, largest_difference(actual, expected_gradient), kind, parameter.name);
      }
    }
  }

  void clear_gradients() const {
    for (const auto& parameter : store_.all()) parameter.tensor.mutable_grad().reset();
  }

  const nlohmann::json cases_ = io::read_json(get_sam_folder() / "cases.json");
  nn::ParameterStore store_{at::TensorOptions(at::kFloat)};
  const nn::ParameterScope scope_{store_, nn::Component::kMaskEncoder, "sam"};
  std::optional<io::SafetensorsFile> expected_;
  Deviations deviations_;
};

class SamVitParity : public SamCase, public testing::WithParamInterface<const char*> {};

TEST_P(SamVitParity, FeaturesAndGradientsMatchTransformers) {
  const std::string name = GetParam();
  open_reference(name);
  const auto config = SamVitConfig::from_json(cases_.at("encoders").at(name), "cases.json");
  const SamVit encoder(scope_, config);
  set_values();
  const at::Tensor direction = read_expected("direction");
  const auto run = [&](int64_t num_recomputed) {
    clear_gradients();
    at::Tensor pixels = read_leaf("pixels");
    const at::Tensor features = encoder(pixels, num_recomputed);
    torch::autograd::backward({features}, {direction});
    return std::pair(features.detach(), pixels.grad());
  };
  const auto [features, pixel_gradient] = run(0);
  ASSERT_EQ(features.sizes(), read_expected("features").sizes());
  deviations_.expect_at_most(1e-5, relative_difference(features, read_expected("features")), "features", name);
  deviations_.expect_at_most(1e-5, largest_difference(pixel_gradient, read_expected("gradient.pixels")),
                             "gradient of pixels", name);
  expect_gradients("gradient");
  deviations_.report();

  std::vector<at::Tensor> gradients;
  for (const auto& parameter : store_.all()) gradients.push_back(parameter.tensor.grad());
  for (const int64_t num_recomputed : {int64_t{1}, encoder.num_blocks()}) {
    const auto [repeated_features, repeated_pixel_gradient] = run(num_recomputed);
    EXPECT_TRUE(at::equal(repeated_features, features));
    EXPECT_TRUE(at::equal(repeated_pixel_gradient, pixel_gradient));
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
    open_reference("decoder");
    decoder_.emplace(scope_, MaskDecoderConfig::from_json(cases_.at("decoder"), "cases.json"));
    set_values();
  }

  at::Tensor compute_logits(const at::Tensor& features, const at::Tensor& prompts,
                            const at::Tensor& mask_images) const {
    return (*decoder_)(features, cases_.at("side"), prompts, mask_images);
  }

  std::optional<MaskDecoder> decoder_;
};

TEST_F(MaskDecoderParity, MasksAndGradientsMatchTransformers) {
  at::Tensor features = read_leaf("features"), prompts = read_leaf("prompts");
  const at::Tensor actual = compute_logits(features, prompts, read_expected("picture_of_mask"));
  ASSERT_EQ(actual.sizes(), read_expected("logits").sizes());
  EXPECT_EQ(actual.scalar_type(), at::kFloat);
  torch::autograd::backward({actual}, {read_expected("direction")});
  deviations_.expect_at_most(1e-5, relative_difference(actual.detach(), read_expected("logits")), "logits", "");
  deviations_.expect_at_most(1e-5, largest_difference(features.grad(), read_expected("gradient.features")),
                             "gradient of features", "");
  deviations_.expect_at_most(1e-5, largest_difference(prompts.grad(), read_expected("gradient.prompts")),
                             "gradient of prompts", "");
  expect_gradients("gradient");
  deviations_.report();
}

TEST_F(MaskDecoderParity, MasksAreIndependentOfEachOther) {
  const at::Tensor order = at::tensor({4, 0, 5, 2}, at::kLong);
  const at::Tensor actual = compute_logits(read_expected("features"), read_expected("prompts").index_select(0, order),
                                           read_expected("picture_of_mask").index_select(0, order));
  EXPECT_LE(relative_difference(actual.detach(), read_expected("logits").index_select(0, order)), 1e-5);
}

TEST_F(MaskDecoderParity, ParametersAreOfDecoderOrConstant) {
  for (const auto& parameter : store_.all()) {
    const bool is_constant = parameter.name == "sam.shared_image_embedding.positional_embedding";
    EXPECT_EQ(parameter.component, is_constant ? nn::Component::kBuffer : nn::Component::kMaskDecoder)
        << parameter.name;
  }
}

}  // namespace
}  // namespace vlmtrain::parity
