#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/brain_llava/family.h"
#include "models/presets.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/synthetic_sample.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

/// Returns a config with smaller patches than the preset's, so that tables and tokens can be too
/// few for volumes with 48 voxels per side.
json make_tiny_config() {
  json config = json::parse(resources().at("brain-llava-tiny/config.json"));
  config["vision_config"]["patch_size"] = 8;
  return config;
}

brain_llava::Config parse_config(const json& config) {
  return brain_llava::Config::from_json(config, "folder");
}

struct InvalidConfig {
  std::string name;
  std::string json_path;  ///< of the changed key
  json value;
  std::string expected_message;  ///< part of the message
};

class BrainLlavaConfigRefuses : public testing::TestWithParam<InvalidConfig> {};

TEST_P(BrainLlavaConfigRefuses, NamingFileAndKey) {
  json config = make_tiny_config();
  config[json::json_pointer(GetParam().json_path)] = GetParam().value;
  EXPECT_THAT(get_error_message([&] { parse_config(config); }, ExitCode::kBadData),
              AllOf(HasSubstr("folder/config.json"), HasSubstr(GetParam().expected_message)));
}

INSTANTIATE_TEST_SUITE_P(
    Files, BrainLlavaConfigRefuses,
    testing::Values(InvalidConfig{"Tower", "/vision_config/model_type", "clip_vision_model", "vit_3d"},
                    InvalidConfig{"NoTower", "/vision_config", nullptr, "vision_config"},
                    InvalidConfig{"NoText", "/text_config", nullptr, "text_config"},
                    InvalidConfig{"Positions", "/vision_config/positions", "sincos", "positions sincos"},
                    InvalidConfig{"TwoAxes", "/vision_config/image_size", {48, 48}, "image_size has 2 numbers"},
                    InvalidConfig{"NoMultiple", "/vision_config/image_size", {48, 50, 48}, "image_size 48x50x48"},
                    InvalidConfig{"Zero", "/vision_config/image_size", 0, "image_size is 0"},
                    InvalidConfig{"Word", "/vision_config/image_size", "large", "image_size"},
                    InvalidConfig{"PatchOfNothing", "/vision_config/patch_size", 0, "patch_size is 0"},
                    InvalidConfig{"SmallTables", "/vision_config/max_patches", 5, "max_patches"},
                    InvalidConfig{"LargeTables", "/vision_config/max_patches", 200, "max_patches"},
                    InvalidConfig{"Heads", "/vision_config/num_attention_heads", 7, "num_attention_heads 7"},
                    InvalidConfig{"Channels", "/vision_config/num_channels", 65, "num_channels"},
                    InvalidConfig{"ManyModalities", "/vision_config/modalities", std::vector<std::string>(1025, "T1w"),
                                  "modalities has 1025"},
                    InvalidConfig{"OneModalityTwice", "/vision_config/modalities", {"T1w", "T1w"}, "modalities"},
                    InvalidConfig{"Modality", "/vision_config/modalities", {1}, "modalities"},
                    InvalidConfig{"ManyTokens", "/projector_config/tokens", {3, 7, 3}, "tokens 3x7x3"},
                    InvalidConfig{"Activation", "/projector_config/hidden_act", "swish", "hidden_act"},
                    InvalidConfig{"ImageToken", "/image_token_id", 608, "image_token_id"}),
    [](const auto& instance) { return instance.param.name; });

TEST(BrainLlavaConfig, AcceptsVolumesThatFitItsTables) {
  const auto config = parse_config(make_tiny_config());
  EXPECT_EQ(config.resolve_volume_size({}), (VolumeShape{48, 48, 48}));
  EXPECT_EQ(config.resolve_volume_size(VolumeShape{24, 32, 48}), (VolumeShape{24, 32, 48}));
  const auto get_error = [&](const VolumeShape& size) {
    return get_error_message([&] { config.resolve_volume_size(size); }, ExitCode::kUsage);
  };
  EXPECT_THAT(get_error({48, 44, 48}), AllOf(HasSubstr("data.volume.size"), HasSubstr("multiples of 8")));
  EXPECT_THAT(get_error({56, 48, 48}), AllOf(HasSubstr("data.volume.size"), HasSubstr("at most 48x48x48")));
  EXPECT_THAT(get_error({16, 48, 48}), AllOf(HasSubstr("data.volume.size"), HasSubstr("at least 24x24x24")));
  EXPECT_THAT(get_error({0, 48, 48}), HasSubstr("data.volume.size"));
}

TEST(BrainLlavaConfig, LearnedTableHasOneSize) {
  json json_config = make_tiny_config();
  json_config["vision_config"]["positions"] = "learned";
  const auto config = parse_config(json_config);
  EXPECT_EQ(config.resolve_volume_size({}), (VolumeShape{48, 48, 48}));
  EXPECT_THAT(get_error_message(
                  [&] {
                    config.resolve_volume_size(VolumeShape{24, 24, 24});
                  },
                  ExitCode::kUsage),
              AllOf(HasSubstr("data.volume.size"), HasSubstr("48x48x48")));
}

class BrainLlavaPreset : public testing::Test {
 protected:
  BrainLlavaPreset() { write_preset_config("brain-llava-7b", folder_.path()); }
  const parity::TemporaryFolder folder_;
};

// Mistral 7B with 64 additional rows, MONAI's ViT of that size, three tables of 8 positions and one
// of 13 modalities.
TEST_F(BrainLlavaPreset, HasTheNumberOfParametersOfItsParts) {
  const int64_t block = 4L * 768 * 768 + 768 + 2L * 768 * 3072 + 3072 + 768 + 4L * 768;
  const int64_t tower = 12 * block + 2L * 768 + 768L * 4096 + 768 + (3L * 8 + 13) * 768;
  const int64_t projector = 768L * 4096 + 4096 + 4096L * 4096 + 4096;
  EXPECT_EQ(build_model(folder_.path(), at::kMeta, at::kBFloat16)->parameters().count_elements(),
            7'241'732'096 + 2L * 64 * 4096 + tower + projector);
}

TEST_F(BrainLlavaPreset, VolumeIsOneRowAndItsTokens) {
  const auto shape =
      compute_sample_shape(folder_.path(), {.volumes = 2, .volume_size = {{128, 96, 64}}, .volume_dtype = at::kHalf});
  EXPECT_EQ(shape.tokens, 2 * 64 + 256);
  EXPECT_EQ(shape.image_tokens, 128);
  EXPECT_EQ(shape.num_media(), 2);
  EXPECT_EQ(shape.num_volumes, 2);
  EXPECT_EQ(shape.pixel_rows, 2);
  EXPECT_EQ(shape.row,
            (data::PixelRowShape{.dtype = at::kHalf, .channels = 1, .depth = 128, .height = 96, .width = 64}));
}

TEST_F(BrainLlavaPreset, SampleHasOneVolumeByDefault) {
  const auto shape = compute_sample_shape(folder_.path(), {});
  EXPECT_EQ(shape.num_volumes, 1);
  EXPECT_EQ(shape.row,
            (data::PixelRowShape{.dtype = at::kFloat, .channels = 1, .depth = 96, .height = 96, .width = 96}));
  EXPECT_EQ(compute_sample_shape(folder_.path(), {.volumes = 0}).pixel_rows, 0);
}

TEST_F(BrainLlavaPreset, RefusesImages) {
  EXPECT_THAT(get_error_message([&] { compute_sample_shape(folder_.path(), {.images = 1}); }, ExitCode::kUsage),
              HasSubstr("brain_llava supports only volumes"));
  EXPECT_THAT(get_error_message([&] { compute_sample_shape(folder_.path(), {.volumes = -1}); }, ExitCode::kUsage),
              HasSubstr("-1 volumes"));
}

TEST(SyntheticVolumes, RequireAFamilyWithVolumes) {
  const parity::TemporaryFolder folder;
  write_preset_config("llava-1.5-7b", folder.path());
  EXPECT_THAT(get_error_message([&] { compute_sample_shape(folder.path(), {.volumes = 1}); }, ExitCode::kUsage),
              AllOf(HasSubstr("--volumes: 1 volume in a sample"), HasSubstr("brain_llava")));
}

}  // namespace
}  // namespace vlmtrain::models
