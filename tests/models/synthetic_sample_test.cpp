#include "vlmtrain/models/synthetic_sample.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {
namespace {

using data::SampleShape;
using io::get_error_message;
using testing::HasSubstr;

/// Returns the start of a PNG of this size, all that process_headers() reads of an image.
std::string make_png_header(image::ImageSize size) {
  std::string bytes("\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR", 16);
  for (const int64_t side : {size.width, size.height}) {
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(side >> shift & 0xFF);
  }
  return bytes + std::string("\x08\x02\0\0\0\0\0\0\0", 9);
}

constexpr image::ImageSize kImageSizes[] = {{32, 32},  {20, 31},   {33, 32},     {480, 640},  {768, 1024},
                                            {1, 9999}, {4000, 11}, {3000, 1500}, {1111, 977}, {64, 96}};

/// Samples of equally sized images, for a checkpoint that splits images into up to 3 x 3 tiles of
/// 32 pixels.
class SyntheticSampleTest : public testing::Test {
 protected:
  /// Returns the processor's shape for a record of `images` images with the same words for any
  /// number.
  SampleShape compute_actual_shape(image::ImageSize size, int64_t images) const {
    auto settings = copy_.origin().processor_settings();
    settings.image_max_pixels = max_pixels_;
    io::write_file(folder_.path() / "image.png", make_png_header(size));
    io::Record record = copy_.origin().records().at(1);
    record.images.assign(static_cast<size_t>(images), folder_.path() / "image.png");
    record.turns.at(0).text = "What has changed?";
    for (int64_t i = 0; i < images; ++i) record.turns[0].text += io::kImagePlaceholder;
    return data::get_sample_shape(load_processor(copy_.origin().checkpoint(), settings)->process_headers(record, 0));
  }

  void expect_actual_shapes() const {
    for (const auto& size : kImageSizes) {
      const SampleShape text_shape = compute_actual_shape(size, 0);
      for (const int64_t images : {0, 1, 2, 3}) {
        SCOPED_TRACE(testing::Message() << images << " images of " << size.width << " x " << size.height);
        const SampleShape shape = compute_sample_shape(copy_.path(), {.images = images,
                                                                      .image_width = size.width,
                                                                      .image_height = size.height,
                                                                      .text_tokens = text_shape.tokens,
                                                                      .label_tokens = text_shape.label_tokens,
                                                                      .image_max_pixels = max_pixels_});
        const SampleShape expected = compute_actual_shape(size, images);
        EXPECT_EQ(shape, expected) << shape.tokens << " tokens for " << expected.tokens;
      }
    }
  }

  const CheckpointCopy copy_{"mixed_batch"};
  const parity::TemporaryFolder folder_;
  std::optional<int64_t> max_pixels_;
};

TEST_F(SyntheticSampleTest, HasShapeOfActualSample) {
  expect_actual_shapes();
  max_pixels_ = 4 * 32 * 32;
  expect_actual_shapes();
}

TEST_F(SyntheticSampleTest, NeedsNoTokenizerIfMarkersAreTokens) {
  std::filesystem::remove(copy_.path() / "tokenizer.json");
  expect_actual_shapes();
}

TEST_F(SyntheticSampleTest, CountsPiecesOfMarkersThatAreNoTokens) {
  std::filesystem::remove(copy_.path() / "tokenizer.json");
  const SyntheticSample sample{.image_width = 96, .image_height = 64};
  const SampleShape shape = compute_sample_shape(copy_.path(), sample);
  ASSERT_EQ(shape.pixel_rows, 7);
  EXPECT_EQ(shape.tokens, 256 + 7 * (4 + 2) + 1 + 2);  // the last marker, two row ends
  io::write_file(copy_.path() / "added_tokens.json", R"({"<fake_token_around_image>": 1, "<row_2_col_3>": 2})");
  // <row_1_col_1> has nine pieces, <global-img> five.
  EXPECT_EQ(compute_sample_shape(copy_.path(), sample).tokens, shape.tokens + 5 * 8 + 4);
  io::write_file(copy_.path() / "added_tokens.json", "[]");
  EXPECT_THAT(get_error_message([&] { compute_sample_shape(copy_.path(), sample); }), HasSubstr("added_tokens.json"));
}

TEST_F(SyntheticSampleTest, ImageIsOneTileWithoutSplitting) {
  copy_.edit("preprocessor_config.json", [](auto& config) { config["do_image_splitting"] = false; });
  EXPECT_EQ(compute_sample_shape(copy_.path(), {.images = 2}), (SampleShape{.tokens = 256 + 2 * (4 + 3),
                                                                            .label_tokens = 64,
                                                                            .image_tokens = 8,
                                                                            .num_images = 2,
                                                                            .pixel_rows = 2,
                                                                            .row = {.height = 32, .width = 32}}));
}

TEST_F(SyntheticSampleTest, InconsistentFilesAreRefused) {
  copy_.edit("preprocessor_config.json", [](auto& config) { config["max_image_size"]["longest_edge"] = 48; });
  EXPECT_THAT(get_error_message([&] { compute_sample_shape(copy_.path(), {}); }), HasSubstr("max_image_size"));
}

/// Video given as a folder of equally sized frames, so that its frame rate is unknown.
class SyntheticVideoTest : public testing::Test {
 protected:
  SampleShape compute_actual_shape(int64_t frames, image::ImageSize size, int64_t video_max_frames) const {
    std::filesystem::create_directory(folder_.path() / "clip");
    for (int64_t i = 0; i < frames; ++i) {
      io::write_file(folder_.path() / "clip" / fmt::format("{}.png", i), make_png_header(size));
    }
    auto settings = origin_.processor_settings();
    settings.video_max_frames = video_max_frames;
    io::Record record = origin_.records().front();
    record.videos = {folder_.path() / "clip"};
    record.images.clear();
    record.turns.at(0).text = std::string(io::kVideoPlaceholder) + "What has changed?";
    return data::get_sample_shape(load_processor(origin_.checkpoint(), settings)->process_headers(record, 0));
  }

  const parity::Case origin_{"qwen2_5_vl_video"};
  const parity::TemporaryFolder folder_;
};

TEST_F(SyntheticVideoTest, HasShapeOfActualSample) {
  for (const int64_t frames : {1, 2, 5, 10}) {
    for (const image::ImageSize size : {image::ImageSize{64, 96}, image::ImageSize{20, 31}}) {
      SCOPED_TRACE(testing::Message() << frames << " frames of " << size.width << " x " << size.height);
      std::filesystem::remove_all(folder_.path() / "clip");
      const SampleShape expected = compute_actual_shape(frames, size, 4);
      EXPECT_EQ(compute_sample_shape(origin_.checkpoint(), {.images = 0,
                                                            .video_frames = frames,
                                                            .video_width = size.width,
                                                            .video_height = size.height,
                                                            .text_tokens = expected.tokens - expected.image_tokens - 2,
                                                            .label_tokens = expected.label_tokens,
                                                            .video_max_frames = 4}),
                expected);
    }
  }
}

TEST_F(SyntheticVideoTest, FramesFollowFromRequestedRate) {
  SyntheticSample sample{.images = 1, .video_frames = 100, .video_fps = 50, .video_width = 64, .video_height = 64};
  const SampleShape shape = compute_sample_shape(origin_.checkpoint(), sample);
  EXPECT_EQ(shape.video_frames, 4);  // two seconds of two frames each
  EXPECT_EQ(shape.num_media(), 2);
  EXPECT_EQ(shape.num_videos, 1);
  ASSERT_EQ(shape.patch_grids.size(), 2U);
  EXPECT_EQ(shape.patch_grids.back().frames, 2);
  sample.video_fps = 0;
  EXPECT_EQ(compute_sample_shape(origin_.checkpoint(), sample).video_frames, 6);  // the checkpoint's maximum
}

TEST(SyntheticSample, FamilyWithoutVideosRefusesThem) {
  const auto checkpoint = parity::Case("mixed_batch").checkpoint();
  EXPECT_THAT(get_error_message([&] { compute_sample_shape(checkpoint, {.video_frames = 8}); }, ExitCode::kUsage),
              testing::AllOf(HasSubstr("supports no videos"), HasSubstr("qwen2_vl, qwen2_5_vl"), HasSubstr("images")));
}

TEST(ContextLength, IsThatOfConfig) {
  const CheckpointCopy copy{"mixed_batch"};
  copy.edit("config.json", [](auto& config) { config["text_config"]["max_position_embeddings"] = 777; });
  EXPECT_EQ(read_context_length(copy.path()).tokens, 777);
  EXPECT_FALSE(read_context_length(copy.path()).is_hard_limit);
  const CheckpointCopy nanovlm{"nanovlm_tiles"};
  nanovlm.edit("config.json", [](auto& config) { config["lm_max_position_embeddings"] = 888; });
  EXPECT_EQ(read_context_length(nanovlm.path()).tokens, 888);
  EXPECT_TRUE(read_context_length(nanovlm.path()).is_hard_limit);
}

struct InvalidSample {
  const char* name;
  SyntheticSample sample;
  std::string expected_message;
};

class SyntheticSampleRefuses : public testing::TestWithParam<InvalidSample> {};

TEST_P(SyntheticSampleRefuses, InvalidValues) {
  const auto checkpoint = parity::Case("mixed_batch").checkpoint();
  EXPECT_THAT(get_error_message([&] { compute_sample_shape(checkpoint, GetParam().sample); }, ExitCode::kUsage),
              HasSubstr(GetParam().expected_message));
}

INSTANTIATE_TEST_SUITE_P(
    Numbers, SyntheticSampleRefuses,
    testing::Values(InvalidSample{"NegativeImages", {.images = -1}, "-1 images"},
                    InvalidSample{"TooManyImages", {.images = 10'001}, "10001 images"},
                    InvalidSample{"NoWidth", {.image_width = 0}, "0 x 768"},
                    InvalidSample{"HugeHeight", {.image_height = 100'001}, "1024 x 100001"},
                    InvalidSample{"NegativeFrames", {.video_frames = -1}, "-1 frames"},
                    InvalidSample{"EndlessVideo", {.video_frames = 500'001}, "500001 frames"},
                    InvalidSample{"FlatVideo", {.video_frames = 8, .video_height = 0}, "1024 x 0"},
                    InvalidSample{"NegativeRate", {.video_frames = 8, .video_fps = -1}, "-1 frames per second"},
                    InvalidSample{"OneTextToken", {.text_tokens = 1}, "1 text tokens"},
                    InvalidSample{"TooMuchText", {.text_tokens = 10'000'001}, "10000001 text tokens"},
                    InvalidSample{"NoLabels", {.label_tokens = 0}, "0 label tokens"},
                    InvalidSample{"OnlyLabels", {.text_tokens = 64}, "64 label tokens of 64 text tokens"},
                    InvalidSample{"LessThanATile", {.image_max_pixels = 100}, "data.image_max_pixels is 100"}),
    [](const auto& instance) { return instance.param.name; });

TEST(SyntheticSample, ImageSizeIsIgnoredWithoutImages) {
  const auto shape = compute_sample_shape(parity::Case("mixed_batch").checkpoint(),
                                          {.images = 0, .image_width = 0, .text_tokens = 2, .label_tokens = 1});
  EXPECT_EQ(shape, (SampleShape{.tokens = 2, .label_tokens = 1}));
}

}  // namespace
}  // namespace vlmtrain::models
