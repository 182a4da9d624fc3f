#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "image/reference_files.h"
#include "models/idefics3/image_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/image_file.h"

namespace vlmtrain::models::idefics3 {
namespace {

using image::ImageSize;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::ThrowsMessage;

const std::filesystem::path kData = std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/models/data/idefics3_images";

ImageProcessorSettings read_settings(const json& changes = json::object()) {
  json config{{"image_processor_type", "Idefics3ImageProcessor"},
              {"size", {{"longest_edge", 128}}},
              {"max_image_size", {{"longest_edge", 32}}}};
  config.update(changes);
  return read_image_processor_settings(PreprocessorConfig(config, "preprocessor_config.json"));
}

TEST(Idefics3ImageProcessor, IsBitEqualToTransformers) {
  const json reference = read_test_json(kData / "cases.json");
  const std::vector<std::byte> expected_bytes = read_test_bytes(kData / "pixels.bin");
  ASSERT_GT(reference.at("cases").size(), 50U);
  for (const auto& entry : reference.at("cases")) {
    SCOPED_TRACE(entry.dump());
    const ImageProcessor processor(read_image_processor_settings(
        PreprocessorConfig(reference.at("configs").at(entry.at("config").get<std::string>()), "config")));
    const auto path = kData / entry.at("picture").get<std::string>();
    const TileGrid grid{entry.at("rows"), entry.at("columns")};
    EXPECT_EQ(processor.compute_grid(image::read_image_size(path)), grid);
    const at::Tensor tiles = processor.process(image::decode_image(path));
    EXPECT_EQ(tiles.size(0), grid.num_tiles());
    EXPECT_EQ(tiles.size(0), entry.at("tiles"));
    EXPECT_EQ(grid.num_tiles(), entry.at("tiles"));
    const at::Tensor pixels = processor.normalize(tiles);
    if (entry.contains("offset")) {
      const std::byte* expected = expected_bytes.data() + entry.at("offset").get<size_t>();
      EXPECT_EQ(find_first_difference(to_bytes(pixels), expected, pixels.nbytes()), -1);
    }
    EXPECT_EQ(compute_crc32(pixels), entry.at("crc32"));
  }
}

TEST(Idefics3ImageProcessor, MissingSettingsHaveTransformersDefaults) {
  const ImageProcessorSettings defaults = read_image_processor_settings(
      PreprocessorConfig({{"image_processor_type", "SmolVLMImageProcessorFast"}}, "config"));
  EXPECT_TRUE(defaults.do_image_splitting);
  EXPECT_EQ(defaults.longest_edge, 1456);
  EXPECT_EQ(defaults.tile_size, 364);
  EXPECT_EQ(defaults.filter, image::ResampleFilter::kLanczos);
  EXPECT_EQ(defaults.normalization.mean, (std::array{0.5, 0.5, 0.5}));
  EXPECT_EQ(defaults.normalization.rescale_factor, 1.0 / 255.0);
}

TEST(Idefics3ImageProcessor, UnsupportedSettingIsRefused) {
  const auto expect_refused = [](const json& changes, const std::string& key) {
    EXPECT_THAT([&] { read_settings(changes); },
                ThrowsMessage<UserError>(AllOf(HasSubstr("preprocessor_config.json"), HasSubstr(key))));
  };
  expect_refused({{"image_processor_type", "CLIPImageProcessor"}}, "CLIPImageProcessor");
  expect_refused({{"resample", 0}}, "resample");
  expect_refused({{"size", {{"height", 3}, {"width", 3}}}}, "size");
  expect_refused({{"size", {{"longest_edge", 0}}}}, "size");
  expect_refused({{"max_image_size", 364}}, "max_image_size");
  expect_refused({{"do_resize", false}}, "do_resize");
  expect_refused({{"do_normalize", false}}, "do_normalize");
  expect_refused({{"do_center_crop", true}}, "do_center_crop");
  expect_refused({{"image_mean", {0.5, 0.5}}}, "image_mean");
  expect_refused({{"image_mean", {0.5, 0.5, 0.5, 0.5}}}, "image_mean");
  expect_refused({{"image_mean", {0.5, 0.5, 1e300}}}, "image_mean");
  expect_refused({{"image_std", {0.5, 0.5, 0.0}}}, "image_std");
  expect_refused({{"image_std", {0.5, 0.5, -0.5}}}, "image_std");
  expect_refused({{"rescale_factor", 0}}, "rescale_factor");
  EXPECT_NO_THROW(
      read_settings({{"do_center_crop", false}, {"processor_class", "Idefics3Processor"}, {"crop_size", nullptr}}));
}

TEST(Idefics3ImageProcessor, PixelLimitShrinksImages) {
  const ImageSize photo_size{480, 640};
  EXPECT_EQ(ImageProcessor(read_settings()).compute_grid(photo_size), (TileGrid{3, 4}));
  EXPECT_EQ(ImageProcessor(read_settings(), 12 * 32 * 32).compute_grid(photo_size), (TileGrid{3, 4}));
  EXPECT_EQ(ImageProcessor(read_settings(), 12 * 32 * 32 - 1).compute_grid(photo_size), (TileGrid{3, 3}));
  EXPECT_EQ(ImageProcessor(read_settings(), 4 * 32 * 32).compute_grid(photo_size), (TileGrid{2, 2}));
  EXPECT_EQ(ImageProcessor(read_settings(), 32 * 32).compute_grid(photo_size), (TileGrid{}));
  EXPECT_THAT([] { ImageProcessor(read_settings(), 32 * 32 - 1); },
              ThrowsMessage<UserError>(HasSubstr("data.image_max_pixels")));

  const at::Tensor image = image::decode_image(kData / "large.jpg");
  const ImageSize image_size{image.size(1), image.size(2)};
  const ImageProcessor limited(read_settings(), 4 * 32 * 32);
  const ImageProcessor smaller_edge(read_settings({{"size", {{"longest_edge", 64}}}}));
  EXPECT_EQ(limited.compute_grid(image_size), smaller_edge.compute_grid(image_size));
  EXPECT_EQ(to_bytes(limited.process(image)), to_bytes(smaller_edge.process(image)));
}

TEST(Idefics3ImageProcessor, GridOfHeaderIsGridOfPixels) {
  for (int64_t longest_edge : {96, 128, 150}) {
    for (const ImageSize size : {ImageSize{1, 1}, {1, 300}, {300, 1}, {31, 97}, {128, 128}, {129, 127}, {640, 481}}) {
      const ImageProcessor processor(read_settings({{"size", {{"longest_edge", longest_edge}}}}));
      const at::Tensor image = at::Tensor(image::decode_image(kData / "tiny.png"));
      const at::Tensor resized_image =
          image::resize_image(image, size.height, size.width, image::ResampleFilter::kBilinear);
      EXPECT_EQ(processor.process(resized_image).size(0), processor.compute_grid(size).num_tiles());
    }
  }
}

}  // namespace
}  // namespace vlmtrain::models::idefics3
