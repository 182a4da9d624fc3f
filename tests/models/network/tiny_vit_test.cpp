#include "models/network/tiny_vit.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/ones.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <map>

#include "vlmtrain/base/error.h"

namespace vlmtrain::models {
namespace {

using testing::AllOf;
using testing::HasSubstr;

std::string get_error(const nlohmann::json& settings) {
  try {
    TinyVitConfig::from_json(settings, "masks.json");
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    EXPECT_THAT(error.what(), HasSubstr("masks.json: "));
    return error.what();
  }
  ADD_FAILURE() << settings << " was accepted";
  return {};
}

TEST(TinyVitConfig, DefaultsMatchMobileSam) {
  const auto config = TinyVitConfig::from_json(nlohmann::json::object(), "masks.json");
  EXPECT_EQ(config.num_blocks(), 12);
  EXPECT_EQ(config.stride(), 16);

  nn::ParameterStore store(at::TensorOptions(at::kFloat).device(at::kMeta));
  std::map<std::string, std::vector<int64_t>> shapes;
  int64_t num_elements = 0;
  const TinyVit encoder({store, nn::Component::kMaskEncoder, "image_encoder"}, config);
  for (const nn::Parameter& parameter : store.all()) {
    shapes[parameter.name] = parameter.sizes().vec();
    num_elements += parameter.elements();
  }
  EXPECT_EQ(encoder.num_blocks(), 15);
  using Shape = std::vector<int64_t>;
  EXPECT_EQ(shapes.at("image_encoder.patch_embed.seq.0.c.weight"), (Shape{32, 3, 3, 3}));
  EXPECT_EQ(shapes.at("image_encoder.patch_embed.seq.2.bn.running_var"), (Shape{64}));
  EXPECT_EQ(shapes.at("image_encoder.layers.0.blocks.1.conv2.c.weight"), (Shape{256, 1, 3, 3}));
  EXPECT_EQ(shapes.at("image_encoder.layers.2.downsample.conv1.c.weight"), (Shape{320, 160, 1, 1}));
  EXPECT_EQ(shapes.at("image_encoder.layers.2.blocks.5.attn.attention_biases"), (Shape{5, 196}));
  EXPECT_EQ(shapes.at("image_encoder.layers.3.blocks.1.mlp.fc1.weight"), (Shape{1280, 320}));
  EXPECT_EQ(shapes.at("image_encoder.neck.0.weight"), (Shape{256, 320, 1, 1}));
  EXPECT_EQ(shapes.at("image_encoder.neck.2.weight"), (Shape{256, 256, 3, 3}));
  EXPECT_NEAR(config.num_parameters() / static_cast<double>(num_elements), 1, 0.02);
}

TEST(TinyVitConfig, InvalidSettingsAreRefused) {
  EXPECT_THAT(get_error({{"image_size", 1000}}), HasSubstr("image_size 1000 is not a multiple of 16"));
  EXPECT_THAT(get_error({{"depths", {2, 2, 2}}}), HasSubstr("depths has 3 entries, but embed_dims has 4"));
  EXPECT_THAT(get_error({{"embed_dims", nlohmann::json::array()}}), HasSubstr("the length of embed_dims is 0"));
  EXPECT_THAT(get_error({{"embed_dims", {63, 128, 160, 320}}}), HasSubstr("begins with 63; it must be even"));
  EXPECT_THAT(get_error({{"embed_dims", {64, 128, 162, 320}}}),
              AllOf(HasSubstr("stage 2"), HasSubstr("162"), HasSubstr("not a multiple of 5 in num_heads")));
  EXPECT_THAT(get_error({{"num_heads", {2, 4, 0, 10}}}), HasSubstr("num_heads is 0"));
  EXPECT_THAT(get_error({{"window_sizes", {7, 7, 100, 7}}}), HasSubstr("window_sizes is 100"));
  EXPECT_THAT(get_error({{"local_conv_size", 4}}), HasSubstr("local_conv_size is 4; it must be odd"));
  EXPECT_THAT(get_error({{"mlp_ratio", 0}}), HasSubstr("mlp_ratio is 0"));
  EXPECT_THAT(get_error({{"mlp_ratio", 0.001}}), HasSubstr("embed_dims times mlp_ratio is 0"));
  EXPECT_THAT(get_error({{"last_merging_keeps_size", false}}),
              AllOf(HasSubstr("features of 32 pixels"), HasSubstr("use 4 stages")));
}

class TinyVitDtypes : public testing::TestWithParam<at::ScalarType> {};

TEST_P(TinyVitDtypes, FeaturesAndGradientsHaveDtypeOfModel) {
  const auto config = TinyVitConfig::from_json({{"image_size", 48},
                                                {"embed_dims", {8, 16, 24, 32}},
                                                {"depths", {1, 1, 1, 1}},
                                                {"num_heads", {1, 2, 3, 2}},
                                                {"out_channels", 8}},
                                               "masks.json");
  nn::ParameterStore store{at::TensorOptions(GetParam())};
  const TinyVit encoder({store, nn::Component::kMaskEncoder, "image_encoder"}, config);
  for (const nn::Parameter& parameter : store.all()) {
    const at::NoGradGuard no_gradients;
    at::Tensor(parameter.tensor).fill_(parameter.initial_values.mean + 0.1 * parameter.initial_values.deviation);
  }
  const at::Tensor pixels = at::ones({2, 3, 48, 48}, GetParam());
  const at::Tensor features = encoder(pixels, /*recomputed_blocks=*/2);
  EXPECT_EQ(features.sizes(), (std::vector<int64_t>{2 * 3 * 3, 8}));
  EXPECT_EQ(features.scalar_type(), GetParam());
  features.sum().backward();
  for (const nn::Parameter& parameter : store.all()) {
    const at::Tensor gradient = parameter.tensor.grad();
    EXPECT_EQ(gradient.defined(), nn::is_trainable(parameter.component)) << parameter.name;
    EXPECT_TRUE(!gradient.defined() || at::isfinite(gradient).all().item<bool>()) << parameter.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, TinyVitDtypes, testing::Values(at::kFloat, at::kBFloat16, at::kHalf, at::kDouble),
                         [](const auto& instance) { return c10::toString(instance.param); });

}  // namespace
}  // namespace vlmtrain::models
