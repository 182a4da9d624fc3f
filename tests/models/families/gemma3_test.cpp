#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "models/gemma3/family.h"
#include "models/gemma3/processor.h"
#include "models/presets.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::gemma3 {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr auto kFull = GemmaLayerType::kFull, kSliding = GemmaLayerType::kSliding;

GemmaConfig parse_text_config(const json& text) {
  return read_text_config(text, "config.json");
}

std::string get_error(const json& text) {
  try {
    parse_text_config(text);
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kBadData);
    return error.what();
  }
  return "no error";
}

TEST(Gemma3Config, EverySixthBlockHasFullAttentionByDefault) {
  EXPECT_THAT(parse_text_config({{"num_hidden_layers", 7}}).layer_types,
              ElementsAre(kSliding, kSliding, kSliding, kSliding, kSliding, kFull, kSliding));
  EXPECT_THAT(parse_text_config({{"num_hidden_layers", 3}, {"sliding_window_pattern", 2}}).layer_types,
              ElementsAre(kSliding, kFull, kSliding));
  const json layer_types{"full_attention", "sliding_attention"};
  EXPECT_THAT(parse_text_config({{"num_hidden_layers", 2}, {"layer_types", layer_types}}).layer_types,
              ElementsAre(kFull, kSliding));
  EXPECT_THAT(get_error({{"num_hidden_layers", 3}, {"layer_types", layer_types}}), HasSubstr("num_hidden_layers is 3"));
  EXPECT_THAT(get_error({{"num_hidden_layers", 1}, {"layer_types", {"chunked_attention"}}}),
              HasSubstr("chunked_attention is not supported"));
}

TEST(Gemma3Config, HasRopeForEachLayerTypeInBothFormats) {
  const auto legacy_config = parse_text_config({{"rope_theta", 5e5},
                                                {"rope_local_base_freq", 2e4},
                                                {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}});
  const auto current_config =
      parse_text_config({{"rope_parameters",
                          {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 5e5}}},
                           {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 2e4}}}}}});
  for (const GemmaConfig& text : {legacy_config, current_config}) {
    EXPECT_EQ(text.full.rope.type, RopeType::kLinear);
    EXPECT_EQ(text.full.rope.factor, 8);
    EXPECT_EQ(text.full.rope.theta, 5e5);
    EXPECT_EQ(text.sliding.rope.type, RopeType::kDefault);
    EXPECT_EQ(text.sliding.rope.theta, 2e4);
  }
  const auto defaults = parse_text_config(json::object());
  EXPECT_EQ(defaults.full.rope.theta, 1e6);
  EXPECT_EQ(defaults.sliding.rope.theta, 1e4);
  EXPECT_THAT(get_error({{"rope_parameters", {{"rope_theta", 1e6}, {"rope_type", "default"}}}}),
              AllOf(HasSubstr("rope_parameters.rope"), HasSubstr("full_attention and sliding_attention")));
  EXPECT_THAT(
      get_error({{"rope_scaling",
                  {{"rope_type", "llama3"}, {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}}}}),
      HasSubstr("full_attention is not supported; supported: default, linear"));
}

TEST(Gemma3Config, RefusesUnsupportedKeys) {
  EXPECT_THAT(get_error({{"attn_logit_softcapping", 50.0}}), HasSubstr("attn_logit_softcapping is 50.0"));
  EXPECT_THAT(get_error({{"final_logit_softcapping", 30.0}}), HasSubstr("final_logit_softcapping is 30.0"));
  EXPECT_THAT(get_error({{"use_bidirectional_attention", true}}), HasSubstr("use_bidirectional_attention"));
  EXPECT_THAT(get_error({{"hidden_activation", "silu"}}), HasSubstr("hidden_activation silu"));
  EXPECT_THAT(get_error({{"model_type", "gemma2"}}), HasSubstr("gemma2 is not supported"));
}

TEST(Gemma3Family, RefusesSimilarModels) {
  const parity::TemporaryFolder folder;
  io::write_file(folder.path() / "config.json", json{{"model_type", "gemma3n"}}.dump());
  try {
    build_model(folder.path(), at::kMeta, at::kFloat);
    FAIL() << "no error";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(),
                AllOf(HasSubstr("config.json"), HasSubstr("gemma3n is not supported"), HasSubstr("a different model")));
  }
}

TEST(Gemma3Config, ImageTokenOutsideTheVocabularyIsRefused) {
  json config = json::parse(resources().at("gemma-3-tiny/config.json"));
  config["image_token_index"] = 608;
  try {
    Config::from_json(config, "config.json");
    FAIL();
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("image_token_index 608"), HasSubstr("vocabulary of 608")));
  }
}

TEST(PanAndScan, SplitsLongImagesLikeTransformers) {
  const PanAndScanSettings settings{.min_crop_size = 256, .max_crops = 4, .min_aspect_ratio = 1.2};
  EXPECT_THAT(compute_crops({1000, 1100}, settings), IsEmpty()) << "nearly square";
  EXPECT_THAT(compute_crops({900, 1100}, std::nullopt), IsEmpty());
  EXPECT_THAT(compute_crops({900, 1100}, settings), ElementsAre(Crop{0, 0, 900, 550}, Crop{0, 550, 900, 550}));
  EXPECT_THAT(compute_crops({2001, 600}, settings),
              ElementsAre(Crop{0, 0, 667, 600}, Crop{667, 0, 667, 600}, Crop{1334, 0, 667, 600}));
  EXPECT_THAT(compute_crops({300, 1001}, settings),
              ElementsAre(Crop{0, 0, 300, 334}, Crop{0, 334, 300, 334}, Crop{0, 668, 300, 333}));
  EXPECT_THAT(compute_crops({255, 2000}, settings), IsEmpty()) << "a side below the minimum of a crop";
  EXPECT_EQ(compute_crops({600, 6000}, settings).size(), 4U);
}

TEST(Gemma3Processor, FormatsImageAndCropsLikeTransformers) {
  const std::string image_text = "\n\n<start_of_image><image_soft_token><image_soft_token><end_of_image>\n\n";
  EXPECT_EQ(format_image_text(2, 0), image_text);
  EXPECT_EQ(format_image_text(2, 2), "Here is the original image " + image_text +
                                         " and here are some crops to help you see better " + image_text + " " +
                                         image_text);
}

}  // namespace
}  // namespace vlmtrain::models::gemma3
