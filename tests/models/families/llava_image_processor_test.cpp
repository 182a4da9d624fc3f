#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "image/reference_files.h"
#include "io/temporary_folder.h"
#include "models/llava/processor.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::models::llava {
namespace {

using io::get_error_message;
using testing::AllOf;
using testing::HasSubstr;

/// Returns an image of tests/parity/reference/modules/images.py.
at::Tensor make_image(int64_t height, int64_t width) {
  at::Tensor image = at::empty({3, height, width}, at::kByte);
  auto values = image.accessor<uint8_t, 3>();
  for (int64_t channel = 0; channel < 3; ++channel) {
    for (int64_t y = 0; y < height; ++y) {
      for (int64_t x = 0; x < width; ++x) {
        values[channel][y][x] = static_cast<uint8_t>((7 * x + 13 * y + 29 * channel + x * y % 31) % 256);
      }
    }
  }
  return image;
}

TEST(LlavaImageProcessor, IsBitEqualToTransformers) {
  const auto file = std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/models/data/llava_images.json";
  const auto reference = io::read_json(file);
  EXPECT_EQ(reference.at("cases").size(), 66U);
  for (const auto& entry : reference.at("cases")) {
    SCOPED_TRACE(entry.dump());
    const auto& config = reference.at("configs").at(entry.at("config").get<std::string>());
    const auto settings = read_image_processor_settings(PreprocessorConfig(config, "preprocessor_config.json"));
    const auto image = prepare_image(make_image(entry.at("height"), entry.at("width")), settings);
    const auto size = settings.get_fixed_output_size();
    ASSERT_TRUE(size);
    EXPECT_EQ((image::ImageSize{image.size(1), image.size(2)}), *size);
    const auto pixels = image::normalize_pixels(image.unsqueeze(0), settings.normalization);
    EXPECT_EQ(pixels.sizes(), at::IntArrayRef(entry.at("shape").get<std::vector<int64_t>>()));
    EXPECT_EQ(compute_crc32(pixels), entry.at("crc"));
  }
}

struct ImageProcessorMistake {
  const char* name;
  nlohmann::json config;
  std::vector<std::string> expected_messages;
};

class LlavaImageProcessorRefuses : public testing::TestWithParam<ImageProcessorMistake> {};

TEST_P(LlavaImageProcessorRefuses, UnsupportedSettings) {
  const auto message = get_error_message(
      [] { read_image_processor_settings(PreprocessorConfig(GetParam().config, "preprocessor_config.json")); });
  EXPECT_THAT(message, HasSubstr("preprocessor_config.json"));
  for (const auto& expected : GetParam().expected_messages) EXPECT_THAT(message, HasSubstr(expected));
}

INSTANTIATE_TEST_SUITE_P(
    Settings, LlavaImageProcessorRefuses,
    testing::Values(ImageProcessorMistake{"Type",
                                          {{"image_processor_type", "Idefics3ImageProcessor"}},
                                          {"Idefics3ImageProcessor", "CLIPImageProcessor"}},
                    ImageProcessorMistake{
                        "Size", {{"size", {{"longest_edge", 3}}}}, {"size", "longest_edge", "shortest_edge"}},
                    ImageProcessorMistake{"NoPixels", {{"size", {{"shortest_edge", 0}}}}, {"size", "shortest_edge"}},
                    ImageProcessorMistake{"Crop", {{"crop_size", "large"}}, {"crop_size", "large"}},
                    ImageProcessorMistake{"NoResize", {{"do_resize", false}}, {"do_resize"}},
                    ImageProcessorMistake{"PadOfClip", {{"do_pad", true}}, {"do_pad", "CLIPImageProcessor"}},
                    ImageProcessorMistake{"Unknown", {{"do_thumbnail", true}}, {"do_thumbnail"}},
                    ImageProcessorMistake{"Filter", {{"resample", 0}}, {"resample is 0"}}),
    [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace vlmtrain::models::llava
