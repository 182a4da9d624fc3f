#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "image/reference_files.h"
#include "models/idefics3/image_processor.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models::idefics3 {
namespace {

using image::ImageSize;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

const std::filesystem::path kData = std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/models/data/idefics3_images";

ImageProcessorSettings settings(const json& changes = json::object()) {
  json config{{"image_processor_type", "Idefics3ImageProcessor"},
              {"size", {{"longest_edge", 128}}},
              {"max_image_size", {{"longest_edge", 32}}}};
  config.update(changes);
  return read_image_processor_settings(PreprocessorConfig(config, "preprocessor_config.json"));
}

TEST(Idefics3ImageProcessor, IsBitEqualToTransformers) {
  const json reference = file_json(kData / "cases.json");
  const std::vector<std::byte> floats = file_bytes(kData / "pixels.bin");
  ASSERT_GT(reference.at("cases").size(), 50U);
  for (const auto& entry : reference.at("cases")) {
    SCOPED_TRACE(entry.dump());
    const ImageProcessor processor(read_image_processor_settings(
        PreprocessorConfig(reference.at("configs").at(entry.at("config").get<std::string>()), "config")));
    const auto path = kData / entry.at("picture").get<std::string>();
    const TileGrid grid{entry.at("rows"), entry.at("columns")};
    EXPECT_EQ(processor.grid_for(image::read_image_size(path)), grid);
    const TiledImage tiled = processor.process(image::decode_image(path));
    EXPECT_EQ(tiled.grid, grid);
    EXPECT_EQ(tiled.tiles.size(0), entry.at("tiles"));
    EXPECT_EQ(grid.tiles(), entry.at("tiles"));
    const at::Tensor pixels = processor.normalize(tiled.tiles);
    if (entry.contains("offset")) {
      const std::byte* expected = floats.data() + entry.at("offset").get<size_t>();
      EXPECT_EQ(first_difference(tensor_bytes(pixels), expected, pixels.nbytes()), -1);
    }
    EXPECT_EQ(crc32_of(pixels), entry.at("crc32"));
  }
}

TEST(Idefics3ImageProcessor, LeftOutSettingsAreTransformersDefaults) {
  const ImageProcessorSettings defaults = read_image_processor_settings(
      PreprocessorConfig({{"image_processor_type", "SmolVLMImageProcessorFast"}}, "config"));
  EXPECT_TRUE(defaults.do_image_splitting);
  EXPECT_EQ(defaults.longest_edge, 1456);
  EXPECT_EQ(defaults.tile_size, 364);
  EXPECT_EQ(defaults.filter, image::Filter::kLanczos);
  EXPECT_EQ(defaults.normalization.mean, (std::array{0.5, 0.5, 0.5}));
  EXPECT_EQ(defaults.normalization.rescale_factor, 1.0 / 255.0);
}

TEST(Idefics3ImageProcessor, NamesTheSettingThatIsNotSupported) {
  const auto refuses = [](const json& changes, const std::string& key) {
    EXPECT_THAT([&] { settings(changes); },
                ThrowsMessage<UserError>(AllOf(HasSubstr("preprocessor_config.json"), HasSubstr(key))));
  };
  refuses({{"image_processor_type", "CLIPImageProcessor"}}, "CLIPImageProcessor");
  refuses({{"resample", 0}}, "resample");
  refuses({{"size", {{"height", 3}, {"width", 3}}}}, "size");
  refuses({{"size", {{"longest_edge", 0}}}}, "size");
  refuses({{"max_image_size", 364}}, "max_image_size");
  refuses({{"do_resize", false}}, "do_resize");
  refuses({{"do_normalize", false}}, "do_normalize");
  refuses({{"do_center_crop", true}}, "do_center_crop");
  refuses({{"image_mean", {0.5, 0.5}}}, "image_mean");
  refuses({{"image_mean", {0.5, 0.5, 0.5, 0.5}}}, "image_mean");
  refuses({{"image_mean", {0.5, 0.5, 1e300}}}, "image_mean");
  refuses({{"image_std", {0.5, 0.5, 0.0}}}, "image_std");
  refuses({{"image_std", {0.5, 0.5, -0.5}}}, "image_std");
  refuses({{"rescale_factor", 0}}, "rescale_factor");
  EXPECT_NO_THROW(
      settings({{"do_center_crop", false}, {"processor_class", "Idefics3Processor"}, {"crop_size", nullptr}}));
}

TEST(Idefics3ImageProcessor, PixelLimitShrinksAndNeverCuts) {
  const ImageSize photo{480, 640};
  EXPECT_EQ(ImageProcessor(settings()).grid_for(photo), (TileGrid{3, 4}));
  EXPECT_EQ(ImageProcessor(settings(), 12 * 32 * 32).grid_for(photo), (TileGrid{3, 4}));
  EXPECT_EQ(ImageProcessor(settings(), 12 * 32 * 32 - 1).grid_for(photo), (TileGrid{3, 3}));
  EXPECT_EQ(ImageProcessor(settings(), 4 * 32 * 32).grid_for(photo), (TileGrid{2, 2}));
  EXPECT_EQ(ImageProcessor(settings(), 32 * 32).grid_for(photo), (TileGrid{}));
  EXPECT_THAT([] { ImageProcessor(settings(), 32 * 32 - 1); },
              ThrowsMessage<UserError>(HasSubstr("data.image_max_pixels")));

  const at::Tensor picture = image::decode_image(kData / "large.jpg");
  const TiledImage limited = ImageProcessor(settings(), 4 * 32 * 32).process(picture);
  const TiledImage smaller = ImageProcessor(settings({{"size", {{"longest_edge", 64}}}})).process(picture);
  EXPECT_EQ(limited.grid, smaller.grid);
  EXPECT_EQ(tensor_bytes(limited.tiles), tensor_bytes(smaller.tiles));
}

TEST(Idefics3ImageProcessor, GridFromTheHeaderIsTheGridOfThePixels) {
  for (int64_t edge : {96, 128, 150}) {
    for (const ImageSize size : {ImageSize{1, 1}, {1, 300}, {300, 1}, {31, 97}, {128, 128}, {129, 127}, {640, 481}}) {
      const ImageProcessor processor(settings({{"size", {{"longest_edge", edge}}}}));
      const at::Tensor picture = at::Tensor(image::decode_image(kData / "tiny.png"));
      const at::Tensor sized = image::resize(picture, size.height, size.width, image::Filter::kBilinear);
      const TiledImage tiled = processor.process(sized);
      EXPECT_EQ(tiled.grid, processor.grid_for(size));
      EXPECT_EQ(tiled.tiles.size(0), tiled.grid.tiles());
    }
  }
}

}  // namespace
}  // namespace vlmtrain::models::idefics3
