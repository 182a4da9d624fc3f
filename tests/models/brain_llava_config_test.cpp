#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/brain_llava/config.h"
#include "models/presets.h"
#include "parity/temporary_folder.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/hypothetical_sample.h"

namespace vlmtrain::models {
namespace {

using io::message_of;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

/// With smaller patches than the preset's, so that tables and tokens can be too few for volumes of 48 voxels a side.
json tiny_config() {
  json config = json::parse(resources().at("brain-llava-tiny/config.json"));
  config["vision_config"]["patch_size"] = 8;
  return config;
}

brain_llava::Config read(const json& config) {
  return brain_llava::Config::from_json(config, "folder");
}

struct Wrong {
  std::string name;
  std::string pointer;  ///< of the key that is changed
  json value;
  std::string words;  ///< in the message
};

class BrainLlavaConfigRefuses : public testing::TestWithParam<Wrong> {};

TEST_P(BrainLlavaConfigRefuses, NamingFileAndKey) {
  json config = tiny_config();
  config[json::json_pointer(GetParam().pointer)] = GetParam().value;
  EXPECT_THAT(message_of([&] { read(config); }, ExitCode::kBadData),
              AllOf(HasSubstr("folder/config.json"), HasSubstr(GetParam().words)));
}

INSTANTIATE_TEST_SUITE_P(
    Files, BrainLlavaConfigRefuses,
    testing::Values(Wrong{"Tower", "/vision_config/model_type", "clip_vision_model", "vit_3d"},
                    Wrong{"NoTower", "/vision_config", nullptr, "vision_config"},
                    Wrong{"NoText", "/text_config", nullptr, "text_config"},
                    Wrong{"Positions", "/vision_config/positions", "sincos", "positions sincos"},
                    Wrong{"TwoAxes", "/vision_config/image_size", {48, 48}, "image_size has 2 numbers"},
                    Wrong{"NoMultiple", "/vision_config/image_size", {48, 50, 48}, "image_size 48x50x48"},
                    Wrong{"Zero", "/vision_config/image_size", 0, "image_size is 0"},
                    Wrong{"Word", "/vision_config/image_size", "large", "image_size"},
                    Wrong{"PatchOfNothing", "/vision_config/patch_size", 0, "patch_size is 0"},
                    Wrong{"SmallTables", "/vision_config/max_patches", 5, "max_patches"},
                    Wrong{"LargeTables", "/vision_config/max_patches", 200, "max_patches"},
                    Wrong{"Heads", "/vision_config/num_attention_heads", 7, "num_attention_heads 7"},
                    Wrong{"Channels", "/vision_config/num_channels", 65, "num_channels"},
                    Wrong{"ManyModalities", "/vision_config/modalities", std::vector<std::string>(1025, "T1w"),
                          "modalities has 1025"},
                    Wrong{"OneModalityTwice", "/vision_config/modalities", {"T1w", "T1w"}, "modalities"},
                    Wrong{"Modality", "/vision_config/modalities", {1}, "modalities"},
                    Wrong{"ManyTokens", "/projector_config/tokens", {3, 7, 3}, "tokens 3x7x3"},
                    Wrong{"Activation", "/projector_config/hidden_act", "swish", "hidden_act"},
                    Wrong{"ImageToken", "/image_token_id", 608, "image_token_id"}),
    [](const auto& instance) { return instance.param.name; });

TEST(BrainLlavaConfig, TakesTheVolumesThatItsTablesReach) {
  const auto config = read(tiny_config());
  EXPECT_EQ(config.volume_size({}), (VolumeAxes{48, 48, 48}));
  EXPECT_EQ(config.volume_size(VolumeAxes{24, 32, 48}), (VolumeAxes{24, 32, 48}));
  const auto refusal = [&](const VolumeAxes& size) {
    return message_of([&] { config.volume_size(size); }, ExitCode::kUsage);
  };
  EXPECT_THAT(refusal({48, 44, 48}), AllOf(HasSubstr("data.volume.size"), HasSubstr("multiples of 8")));
  EXPECT_THAT(refusal({56, 48, 48}), AllOf(HasSubstr("data.volume.size"), HasSubstr("at most 48x48x48")));
  EXPECT_THAT(refusal({16, 48, 48}), AllOf(HasSubstr("data.volume.size"), HasSubstr("at least 24x24x24")));
  EXPECT_THAT(refusal({0, 48, 48}), HasSubstr("data.volume.size"));
}

TEST(BrainLlavaConfig, ALearnedTableIsOfOneSize) {
  json json_config = tiny_config();
  json_config["vision_config"]["positions"] = "learned";
  const auto config = read(json_config);
  EXPECT_EQ(config.volume_size({}), (VolumeAxes{48, 48, 48}));
  EXPECT_THAT(message_of(
                  [&] {
                    config.volume_size(VolumeAxes{24, 24, 24});
                  },
                  ExitCode::kUsage),
              AllOf(HasSubstr("data.volume.size"), HasSubstr("48x48x48")));
}

class BrainLlavaPreset : public testing::Test {
 protected:
  BrainLlavaPreset() { write_preset_config("brain-llava-7b", folder_.path()); }
  const parity::TemporaryFolder folder_;
};

// Mistral 7B with 64 rows more, MONAI's ViT of that size, three tables of 8 positions and one of 13 modalities.
TEST_F(BrainLlavaPreset, HasTheNumberOfParametersOfItsParts) {
  const int64_t block = 4L * 768 * 768 + 768 + 2L * 768 * 3072 + 3072 + 768 + 4L * 768;
  const int64_t tower = 12 * block + 2L * 768 + 768L * 4096 + 768 + (3L * 8 + 13) * 768;
  const int64_t projector = 768L * 4096 + 4096 + 4096L * 4096 + 4096;
  EXPECT_EQ(build_model(folder_.path(), at::kMeta, at::kBFloat16)->parameters().total_elements(),
            7'241'732'096 + 2L * 64 * 4096 + tower + projector);
}

TEST_F(BrainLlavaPreset, AVolumeIsARowAndItsTokens) {
  const auto shape =
      shape_of(folder_.path(), {.volumes = 2, .volume_size = {{128, 96, 64}}, .volume_dtype = at::kHalf});
  EXPECT_EQ(shape.tokens, 2 * 64 + 256);
  EXPECT_EQ(shape.image_tokens, 128);
  EXPECT_EQ(shape.images, 2);
  EXPECT_EQ(shape.volumes, 2);
  EXPECT_EQ(shape.pixel_rows, 2);
  EXPECT_EQ(shape.row, (data::PixelRow{.dtype = at::kHalf, .channels = 1, .depth = 128, .height = 96, .width = 64}));
}

TEST_F(BrainLlavaPreset, ASampleHasOneVolumeUnlessToldOtherwise) {
  const auto shape = shape_of(folder_.path(), {});
  EXPECT_EQ(shape.volumes, 1);
  EXPECT_EQ(shape.row, (data::PixelRow{.dtype = at::kFloat, .channels = 1, .depth = 96, .height = 96, .width = 96}));
  EXPECT_EQ(shape_of(folder_.path(), {.volumes = 0}).pixel_rows, 0);
}

TEST_F(BrainLlavaPreset, TakesNoPictures) {
  EXPECT_THAT(message_of([&] { shape_of(folder_.path(), {.images = 1}); }, ExitCode::kUsage),
              HasSubstr("brain_llava takes volumes, no pictures"));
  EXPECT_THAT(message_of([&] { shape_of(folder_.path(), {.volumes = -1}); }, ExitCode::kUsage),
              HasSubstr("-1 volumes"));
}

TEST(HypotheticalVolumes, AreForFamiliesThatTakeThem) {
  const parity::TemporaryFolder folder;
  write_preset_config("llava-1.5-7b", folder.path());
  EXPECT_THAT(message_of([&] { shape_of(folder.path(), {.volumes = 1}); }, ExitCode::kUsage),
              AllOf(HasSubstr("1 volumes"), HasSubstr("brain_llava")));
}

}  // namespace
}  // namespace vlmtrain::models
