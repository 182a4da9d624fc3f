#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "models/network/config.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::ThrowsMessage;

void expect_bad_encoder(const json& config, const std::string& expected_message) {
  EXPECT_THAT([&] { SamVitConfig::from_json(config, "config.json"); },
              ThrowsMessage<UserError>(HasSubstr(expected_message)))
      << config;
}

TEST(SamConfigTest, DefaultsMatchTransformers) {
  const auto encoder = SamVitConfig::from_json(json::object(), "config.json");
  EXPECT_EQ(encoder.mlp_dim, 3072);
  EXPECT_EQ(encoder.patches_per_side(), 64);
  EXPECT_EQ(encoder.get_window_size(0), 14);
  EXPECT_EQ(encoder.get_window_size(11), 0);
  EXPECT_NEAR(encoder.num_parameters(), 89e6, 2e6);
  const auto decoder = MaskDecoderConfig::from_json(json::object(), "config.json");
  EXPECT_EQ(decoder.num_mask_tokens, 4);
  EXPECT_EQ(decoder.transformer.activation, Activation::kRelu);
  EXPECT_NEAR(decoder.num_parameters(), 3.5e6, 1e6);
}

TEST(SamConfigTest, MlpWidthComesFromEitherKey) {
  EXPECT_EQ(SamVitConfig::from_json({{"hidden_size", 12}, {"mlp_ratio", 2.5}}, "").mlp_dim, 30);
  EXPECT_EQ(SamVitConfig::from_json({{"mlp_dim", nullptr}, {"mlp_ratio", 2.0}}, "").mlp_dim, 1536);
  EXPECT_EQ(SamVitConfig::from_json({{"mlp_dim", 7}, {"mlp_ratio", 2.0}}, "").mlp_dim, 7);
  expect_bad_encoder({{"hidden_size", 12}, {"mlp_ratio", 0.01}}, "mlp_dim");
}

TEST(SamConfigTest, InvalidEncodersAreRefused) {
  expect_bad_encoder({{"patch_size", 14}}, "patch_size 14 is not supported; supported: 16");
  expect_bad_encoder({{"image_size", 1000}}, "image_size 1000 is not a multiple of patch_size 16");
  expect_bad_encoder({{"num_attention_heads", 7}}, "not a multiple of num_attention_heads 7");
  expect_bad_encoder({{"num_hidden_layers", 11}}, "global_attn_indexes names layer 11");
  expect_bad_encoder({{"global_attn_indexes", {-1}}}, "global_attn_indexes names layer -1");
  expect_bad_encoder({{"num_channels", 4}}, "num_channels must be 3");
  expect_bad_encoder({{"window_size", 0}}, "window_size");
}

TEST(SamConfigTest, InvalidDecodersAreRefused) {
  for (const auto& config : {json{{"hidden_size", 252}}, json{{"num_attention_heads", 7}},
                             json{{"attention_downsample_rate", 3}}, json{{"hidden_act", "swish"}}}) {
    EXPECT_THROW(MaskDecoderConfig::from_json(config, "config.json"), UserError) << config;
  }
}

}  // namespace
}  // namespace vlmtrain::models
