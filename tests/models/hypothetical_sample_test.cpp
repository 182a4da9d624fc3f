#include "vlmtrain/models/hypothetical_sample.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "vlmtrain/image/decode.h"

namespace vlmtrain::models {
namespace {

using data::SampleShape;
using io::message_of;
using testing::HasSubstr;

/// The start of a PNG of this size: all that an outline reads of a picture.
std::string png_header(image::ImageSize size) {
  std::string bytes("\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR", 16);
  for (const int64_t side : {size.width, size.height}) {
    for (const int shift : {24, 16, 8, 0}) bytes += static_cast<char>(side >> shift & 0xFF);
  }
  return bytes + std::string("\x08\x02\0\0\0\0\0\0\0", 9);
}

constexpr image::ImageSize kSizes[] = {{32, 32},  {20, 31},   {33, 32},     {480, 640},  {768, 1024},
                                       {1, 9999}, {4000, 11}, {3000, 1500}, {1111, 977}, {64, 96}};

/// Samples of images of one size, of a checkpoint that cuts its pictures into up to 3 x 3 tiles of 32 pixels.
class HypotheticalSampleTest : public testing::Test {
 protected:
  /// What the processor makes of a record of so many images, with the same words for any number of them.
  SampleShape real(image::ImageSize size, int64_t images) const {
    auto settings = copy_.origin().processor_settings();
    settings.image_max_pixels = max_pixels_;
    io::write_file(folder_.path() / "picture.png", png_header(size));
    io::Record record = copy_.origin().records().at(1);
    record.images.assign(static_cast<size_t>(images), folder_.path() / "picture.png");
    record.turns.at(0).text = "What has changed?";
    for (int64_t i = 0; i < images; ++i) record.turns[0].text += io::kImageMark;
    return data::shape_of(load_processor(copy_.origin().checkpoint(), settings)->outline(record, 0));
  }

  void expect_real_shapes() const {
    for (const auto& size : kSizes) {
      const SampleShape words = real(size, 0);
      for (const int64_t images : {0, 1, 2, 3}) {
        SCOPED_TRACE(testing::Message() << images << " images of " << size.width << " x " << size.height);
        const SampleShape shape = shape_of(copy_.path(), {.images = images,
                                                          .image_width = size.width,
                                                          .image_height = size.height,
                                                          .text_tokens = words.tokens,
                                                          .label_tokens = words.label_tokens,
                                                          .image_max_pixels = max_pixels_});
        const SampleShape expected = real(size, images);
        EXPECT_EQ(shape, expected) << shape.tokens << " tokens for " << expected.tokens;
      }
    }
  }

  const CheckpointCopy copy_{"mixed_batch"};
  const parity::TemporaryFolder folder_;
  std::optional<int64_t> max_pixels_;
};

TEST_F(HypotheticalSampleTest, HasTheShapeOfARealOne) {
  expect_real_shapes();
  max_pixels_ = 4 * 32 * 32;
  expect_real_shapes();
}

TEST_F(HypotheticalSampleTest, NeedsNoTokenizerWhereMarkersAreTokens) {
  std::filesystem::remove(copy_.path() / "tokenizer.json");
  expect_real_shapes();
}

TEST_F(HypotheticalSampleTest, CountsThePiecesOfMarkersThatAreNoTokens) {
  std::filesystem::remove(copy_.path() / "tokenizer.json");
  const HypotheticalSample sample{.image_width = 96, .image_height = 64};
  const SampleShape known = shape_of(copy_.path(), sample);
  ASSERT_EQ(known.pixel_rows, 7);
  EXPECT_EQ(known.tokens, 256 + 7 * (4 + 2) + 1 + 2);  // the last mark, two ends of rows
  io::write_file(copy_.path() / "added_tokens.json", R"({"<fake_token_around_image>": 1, "<row_2_col_3>": 2})");
  // <row_1_col_1> has nine pieces, <global-img> five.
  EXPECT_EQ(shape_of(copy_.path(), sample).tokens, known.tokens + 5 * 8 + 4);
  io::write_file(copy_.path() / "added_tokens.json", "[]");
  EXPECT_THAT(message_of([&] { shape_of(copy_.path(), sample); }), HasSubstr("added_tokens.json"));
}

TEST_F(HypotheticalSampleTest, WithoutSplittingAnImageIsOneTile) {
  copy_.edit("preprocessor_config.json", [](auto& config) { config["do_image_splitting"] = false; });
  EXPECT_EQ(shape_of(copy_.path(), {.images = 2}), (SampleShape{.tokens = 256 + 2 * (4 + 3),
                                                                .label_tokens = 64,
                                                                .image_tokens = 8,
                                                                .images = 2,
                                                                .pixel_rows = 2,
                                                                .row = {.height = 32, .width = 32}}));
}

TEST_F(HypotheticalSampleTest, FilesThatContradictEachOtherAreRefused) {
  copy_.edit("preprocessor_config.json", [](auto& config) { config["max_image_size"]["longest_edge"] = 48; });
  EXPECT_THAT(message_of([&] { shape_of(copy_.path(), {}); }), HasSubstr("max_image_size"));
}

/// A video of frames of one size, in a folder, so that nobody knows how many a second there are.
class HypotheticalVideoTest : public testing::Test {
 protected:
  SampleShape real(int64_t frames, image::ImageSize size, int64_t video_max_frames) const {
    std::filesystem::create_directory(folder_.path() / "clip");
    for (int64_t i = 0; i < frames; ++i) {
      io::write_file(folder_.path() / "clip" / fmt::format("{}.png", i), png_header(size));
    }
    auto settings = origin_.processor_settings();
    settings.video_max_frames = video_max_frames;
    io::Record record = origin_.records().front();
    record.videos = {folder_.path() / "clip"};
    record.images.clear();
    record.turns.at(0).text = std::string(io::kVideoMark) + "What has changed?";
    return data::shape_of(load_processor(origin_.checkpoint(), settings)->outline(record, 0));
  }

  const parity::Case origin_{"qwen2_5_vl_video"};
  const parity::TemporaryFolder folder_;
};

TEST_F(HypotheticalVideoTest, HasTheShapeOfARealOne) {
  for (const int64_t frames : {1, 2, 5, 10}) {
    for (const image::ImageSize size : {image::ImageSize{64, 96}, image::ImageSize{20, 31}}) {
      SCOPED_TRACE(testing::Message() << frames << " frames of " << size.width << " x " << size.height);
      std::filesystem::remove_all(folder_.path() / "clip");
      const SampleShape expected = real(frames, size, 4);
      EXPECT_EQ(shape_of(origin_.checkpoint(), {.images = 0,
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

TEST_F(HypotheticalVideoTest, OfAKnownRateAsManyFramesAreTakenAsAreWanted) {
  HypotheticalSample sample{.images = 1, .video_frames = 100, .video_fps = 50, .video_width = 64, .video_height = 64};
  const SampleShape wanted = shape_of(origin_.checkpoint(), sample);
  EXPECT_EQ(wanted.video_frames, 4);  // two seconds, two frames each
  EXPECT_EQ(wanted.images, 2);
  EXPECT_EQ(wanted.videos, 1);
  ASSERT_EQ(wanted.grids.size(), 2U);
  EXPECT_EQ(wanted.grids.back().frames, 2);
  sample.video_fps = 0;
  EXPECT_EQ(shape_of(origin_.checkpoint(), sample).video_frames, 6);  // all that the checkpoint takes
}

TEST(HypotheticalSample, AFamilyWithoutVideosRefusesThem) {
  const auto checkpoint = parity::Case("mixed_batch").checkpoint();
  EXPECT_THAT(message_of([&] { shape_of(checkpoint, {.video_frames = 8}); }, ExitCode::kUsage),
              testing::AllOf(HasSubstr("takes no videos"), HasSubstr("qwen2_vl, qwen2_5_vl"), HasSubstr("images")));
}

TEST(ContextLength, IsWhatTheConfigSays) {
  const CheckpointCopy copy{"mixed_batch"};
  copy.edit("config.json", [](auto& config) { config["text_config"]["max_position_embeddings"] = 777; });
  EXPECT_EQ(context_length_of(copy.path()).tokens, 777);
  EXPECT_FALSE(context_length_of(copy.path()).refuses_longer);
  const CheckpointCopy nanovlm{"nanovlm_tiles"};
  nanovlm.edit("config.json", [](auto& config) { config["lm_max_position_embeddings"] = 888; });
  EXPECT_EQ(context_length_of(nanovlm.path()).tokens, 888);
  EXPECT_TRUE(context_length_of(nanovlm.path()).refuses_longer);
}

struct Absurd {
  const char* name;
  HypotheticalSample sample;
  std::string said;
};

class HypotheticalSampleRefuses : public testing::TestWithParam<Absurd> {};

TEST_P(HypotheticalSampleRefuses, WhatNoSampleIs) {
  const auto checkpoint = parity::Case("mixed_batch").checkpoint();
  EXPECT_THAT(message_of([&] { shape_of(checkpoint, GetParam().sample); }, ExitCode::kUsage),
              HasSubstr(GetParam().said));
}

INSTANTIATE_TEST_SUITE_P(
    Numbers, HypotheticalSampleRefuses,
    testing::Values(Absurd{"NegativeImages", {.images = -1}, "-1 images"},
                    Absurd{"TooManyImages", {.images = 10'001}, "10001 images"},
                    Absurd{"NoWidth", {.image_width = 0}, "0 x 768"},
                    Absurd{"HugeHeight", {.image_height = 100'001}, "1024 x 100001"},
                    Absurd{"NegativeFrames", {.video_frames = -1}, "-1 frames"},
                    Absurd{"EndlessVideo", {.video_frames = 500'001}, "500001 frames"},
                    Absurd{"FlatVideo", {.video_frames = 8, .video_height = 0}, "1024 x 0"},
                    Absurd{"NegativeRate", {.video_frames = 8, .video_fps = -1}, "-1 frames a second"},
                    Absurd{"OneTextToken", {.text_tokens = 1}, "1 text tokens"},
                    Absurd{"TooMuchText", {.text_tokens = 10'000'001}, "10000001 text tokens"},
                    Absurd{"NoLabels", {.label_tokens = 0}, "0 label tokens"},
                    Absurd{"OnlyLabels", {.text_tokens = 64}, "64 label tokens of 64 text tokens"},
                    Absurd{"LessThanATile", {.image_max_pixels = 100}, "data.image_max_pixels is 100"}),
    [](const auto& instance) { return instance.param.name; });

TEST(HypotheticalSample, WithoutImagesTheirSizeIsOfNoEffect) {
  const auto shape = shape_of(parity::Case("mixed_batch").checkpoint(),
                              {.images = 0, .image_width = 0, .text_tokens = 2, .label_tokens = 1});
  EXPECT_EQ(shape, (SampleShape{.tokens = 2, .label_tokens = 1}));
}

}  // namespace
}  // namespace vlmtrain::models
