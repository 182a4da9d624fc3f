#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/stack.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "image/reference_files.h"
#include "io/temporary_folder.h"
#include "models/families/gemma4_checkpoint.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/models/media_preview.h"

namespace vlmtrain::models::gemma4 {
namespace {

using data::PatchGrid;
using io::get_error_message;
using nlohmann::json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

/// Returns results of transformers (tests/parity/reference/modules/gemma4_layouts.py).
json read_reference(const char* table) {
  return io::read_json(std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/models/data/gemma4.json").at(table);
}

/// Returns the source image of gemma4_layouts.py as a PNG file in memory.
io::MediaRef make_image(int64_t height, int64_t width, int64_t seed = 0) {
  const at::Tensor y = at::arange(height).view({1, height, 1}), x = at::arange(width).view({1, 1, width}),
                   channel = at::arange(3).view({3, 1, 1});
  const at::Tensor values = 7 * x + 13 * y + 29 * channel + (x * y).remainder(31) + 17 * seed;
  io::MediaRef image("image.png");
  image.bytes =
      std::make_shared<const std::string>(image::encode_png(values.remainder(256).to(at::kByte).contiguous()));
  return image;
}

io::MediaRef make_video(int64_t frames, int64_t height, int64_t width) {
  io::MediaRef video("frames");
  for (int64_t i = 0; i < frames; ++i) video.frames.push_back(make_image(height, width, i));
  return video;
}

io::Record make_record(std::vector<io::MediaRef> images, std::vector<io::MediaRef> videos) {
  std::string text;
  for (size_t i = 0; i < images.size(); ++i) text += "<image>";
  for (size_t i = 0; i < videos.size(); ++i) text += "<video>";
  io::Record record;
  record.id = "record";
  record.turns = {{io::Role::kUser, text + "What?"}, {io::Role::kAssistant, "It."}};
  record.images = std::move(images);
  record.videos = std::move(videos);
  return record;
}

TEST(Gemma4Size, MatchesTransformers) {
  for (const json& entry : read_reference("sizes")) {
    const PatchShape shape{.patch_size = entry.at(0), .pooling_size = entry.at(1)};
    const auto resized = compute_resized_size({entry.at(3), entry.at(4)}, entry.at(2), shape);
    EXPECT_EQ(resized.height, entry.at(5)) << entry;
    EXPECT_EQ(resized.width, entry.at(6)) << entry;
  }
}

TEST(Gemma4Processor, PixelsAreBitEqualToTransformers) {
  for (const json& entry : read_reference("pixels")) {
    SCOPED_TRACE(entry.dump());
    const Checkpoint checkpoint(entry.at("unified"));
    const bool is_video = entry.at("medium") == "video";
    checkpoint.edit(is_video ? "video_processor" : "image_processor",
                    {{"max_soft_tokens", entry.at("max_soft_tokens")}});
    const int64_t height = entry.at("size").at(0), width = entry.at("size").at(1);
    const auto record = is_video ? make_record({}, {make_video(entry.at("frames"), height, width)})
                                 : make_record({make_image(height, width)}, {});
    const auto sample = checkpoint.load_processor()->process(record, 0);
    EXPECT_THAT(sample.patch_grids, ElementsAre(PatchGrid{entry.at("frames"), entry.at("rows"), entry.at("columns")}));
    EXPECT_EQ(sample.image_token_positions.size(),
              sample.patch_grids.front().frames * entry.at("tokens").get<size_t>());
    const auto& ids = checkpoint.config().tokens;
    for (const int64_t position : sample.image_token_positions) {
      EXPECT_EQ(sample.token_ids.at(static_cast<size_t>(position)), is_video ? ids.video : ids.image);
    }
    EXPECT_EQ(compute_crc32(sample.pixel_values), entry.at("crc"));
  }
}

TEST(Gemma4Videos, MatchFramesAndTextsOfTransformers) {
  const MediaTokenTexts texts{
      .image = "<|image|>", .video = "<|video|>", .image_start = "<|image>", .image_end = "<image|>"};
  for (const json& entry : read_reference("frames")) {
    const json& video = entry.at("video");
    const image::VideoInfo info{
        .num_frames = video.at(0), .fps = video.at(1).is_null() ? 0 : video.at(1).get<double>(), .size = {10, 10}};
    VideoSettings settings{.num_frames = std::nullopt};
    if (!video.at(2).is_null()) settings.num_frames = video.at(2);
    if (!video.at(3).is_null()) settings.sampling_fps = video.at(3);
    settings.has_fps_conflict = !video.at(2).is_null() && !video.at(3).is_null();
    if (settings.has_fps_conflict) {
      EXPECT_THAT(get_error_message([&] { settings.select_frames(info); }, ExitCode::kBadData),
                  HasSubstr("num_frames"));
      continue;
    }
    const auto frames = settings.select_frames(info);
    if (entry.at("indices").is_null()) {
      EXPECT_EQ(std::ssize(frames), info.num_frames) << "too few frames for transformers: all are used";
      continue;
    }
    EXPECT_EQ(frames, entry.at("indices")) << video;
    EXPECT_EQ(format_video_text(make_timestamps(frames, settings.get_frame_rate(info)), 2, texts), entry.at("text"))
        << video;
  }
  for (const json& entry : read_reference("images")) EXPECT_EQ(format_image_text(entry.at(0), texts), entry.at(1));
}

TEST(Gemma4Videos, HaveMaxFrames) {
  VideoSettings settings{.max_frames = 4};
  EXPECT_THAT(settings.select_frames({.num_frames = 100, .fps = 25, .size = {10, 10}}), ElementsAre(0, 25, 50, 75));
  EXPECT_THAT(settings.select_frames({.num_frames = 6, .fps = 0, .size = {10, 10}, .is_frame_list = true}),
              ElementsAre(0, 1, 3, 4));
  EXPECT_THAT(settings.select_frames({.num_frames = 3, .fps = 0, .size = {10, 10}, .is_frame_list = true}),
              ElementsAre(0, 1, 2));
  settings.num_frames = std::nullopt;
  EXPECT_EQ(settings.select_frames({.num_frames = 1000, .fps = 25, .size = {10, 10}}).size(), 4U);
}

TEST(Gemma4Processor, WritesMediaInOrder) {
  for (const bool merges_patches : {false, true}) {
    const Checkpoint checkpoint(merges_patches);
    auto video = make_video(2, 48, 96);
    video.fps = 0.5;
    auto record = make_record({make_image(48, 480)}, {video});
    const auto processor = checkpoint.load_processor();
    const auto sample = processor->process(record, 0);
    EXPECT_EQ(data::get_sample_shape(processor->process_headers(record, 0)), data::get_sample_shape(sample));
    // 5 x 52 tokens of at most 280, and per frame 5 x 11 of at most 70.
    const int64_t patches_per_side = merges_patches ? 1 : 3;
    EXPECT_THAT(sample.patch_grids, ElementsAre(PatchGrid{1, 5 * patches_per_side, 52 * patches_per_side},
                                                PatchGrid{2, 5 * patches_per_side, 11 * patches_per_side}));
    const int64_t side = merges_patches ? 48 : 16;
    EXPECT_EQ(sample.pixel_values.sizes().slice(1), (std::vector<int64_t>{3, side, side}));
    std::string text = processor->tokenizer().decode(sample.token_ids, /*skip_special_tokens=*/false);
    const auto count_and_remove = [&](const std::string& token) {
      int64_t count = 0;
      for (size_t at = text.find(token); at != std::string::npos; at = text.find(token)) {
        text.erase(at, token.size());
        ++count;
      }
      return count;
    };
    EXPECT_EQ(count_and_remove("<|image|>"), 5 * 52);
    EXPECT_EQ(count_and_remove("<|video|>"), 2 * 5 * 11);
    EXPECT_EQ(text,
              "<bos><start_of_turn>user\n<|image><image|>00:00 <|image><image|> 00:02 <|image><image|>What?"
              "<end_of_turn>\n<start_of_turn>assistant\nIt.<end_of_turn>\n");
    EXPECT_TRUE(sample.position_ids.empty());

    const auto images = read_image_settings(checkpoint.path(), checkpoint.config().patches, std::nullopt);
    const auto videos = VideoSettings::read(checkpoint.path(), checkpoint.config().patches, {});
    const auto image_shape = compute_image_sample_shape(images, checkpoint.config().patches, {48, 480});
    const auto video_shape = compute_video_sample_shape(
        videos, checkpoint.config(), {.num_frames = 2, .fps = 0.5, .size = {48, 96}, .is_frame_list = true},
        checkpoint.path());
    EXPECT_EQ(image_shape.image_tokens + video_shape.image_tokens, std::ssize(sample.image_token_positions));
    EXPECT_EQ(image_shape.pixel_rows + video_shape.pixel_rows, sample.pixel_values.size(0));
    EXPECT_EQ(image_shape.row, video_shape.row);
    EXPECT_EQ(video_shape.video_frames, 2);
    const auto text_tokens = std::ssize(processor->tokenizer().encode(text).ids);
    EXPECT_EQ(image_shape.tokens, 5 * 52 + 2);
    EXPECT_EQ(sample.tokens(), text_tokens + std::ssize(sample.image_token_positions));
    EXPECT_EQ(video_shape.tokens - video_shape.image_tokens,
              std::ssize(processor->tokenizer().encode("00:00 <|image><image|> 00:02 <|image><image|>").ids));
    std::filesystem::remove(checkpoint.path() / "tokenizer.json");
    EXPECT_EQ(compute_video_sample_shape(videos, checkpoint.config(),
                                         {.num_frames = 2, .fps = 0.5, .size = {48, 96}, .is_frame_list = true},
                                         checkpoint.path())
                  .tokens,
              2 * 5 * 11 + 2 * (6 + 2) + 1);
  }
}

TEST(Gemma4Processor, PreviewsShowFramesOfTheTower) {
  for (const bool merges_patches : {false, true}) {
    const Checkpoint checkpoint(merges_patches);
    // Both sizes are those of the budgets, so that nothing is resized: 14 x 20 and 7 x 10 tokens.
    const auto record = make_record({make_image(14 * 48, 20 * 48)}, {make_video(3, 7 * 48, 10 * 48)});
    const auto processor = checkpoint.load_processor();
    const auto previews = processor->preview_media(record, processor->process(record, 0));
    ASSERT_EQ(previews.size(), 4U);
    for (size_t i = 0; i < previews.size(); ++i) {
      const auto& medium = i == 0 ? record.images[0] : record.videos[0].frames[i - 1];
      EXPECT_TRUE(at::equal(previews[i].pixels, image::decode_image(medium))) << i;
      EXPECT_EQ(previews[i].frame_index, i == 0 ? 0 : i - 1);
    }
  }
}

TEST(Gemma4Processor, ShrinksLongSamplesToSmallerBudgets) {
  const Checkpoint checkpoint;
  checkpoint.edit("image_processor", {{"max_soft_tokens", 1120}});
  const auto record = make_record({make_image(480, 640)}, {make_video(2, 48, 48)});
  const auto full_sample = checkpoint.load_processor()->process(record, 0);
  const int64_t text_tokens = full_sample.tokens() - 28 * 38;
  EXPECT_EQ(full_sample.patch_grids.front(), (PatchGrid{1, 28 * 3, 38 * 3}));
  ProcessorSettings settings;
  for (const auto& [max_tokens, rows, columns] :
       {std::tuple{1000, 20, 27}, {540, 20, 27}, {539, 14, 19}, {200, 10, 13}, {63, 7, 9}}) {
    settings.max_length = text_tokens + max_tokens;
    settings.image_max_pixels.reset();
    const auto sample = checkpoint.load_processor(settings)->process(record, 0);
    EXPECT_EQ(sample.patch_grids.front(), (PatchGrid{1, rows * 3, columns * 3})) << max_tokens;
    ASSERT_TRUE(sample.shrink_info);
    settings.image_max_pixels = sample.shrink_info->image_max_pixels;
    EXPECT_EQ(checkpoint.load_processor(settings)->process(record, 0).token_ids, sample.token_ids);
  }
  settings.image_max_pixels.reset();
  settings.max_length = text_tokens + 62;
  EXPECT_THROW(checkpoint.load_processor(settings)->process(record, 0), data::SampleTooLongError);
}

TEST(Gemma4Processor, AudioTokenInTextNamesTheSample) {
  const parity::TemporaryFolder folder;
  write_preset_config("gemma-4-tiny", folder.path());
  const auto processor = models::load_processor(folder.path(), {});
  io::Record record;
  record.id = "spoken";
  record.turns.resize(2);
  record.turns[0].role = io::Role::kUser;
  record.turns[0].text = "Hear <|audio|>.";
  record.turns[1].role = io::Role::kAssistant;
  record.turns[1].text = "Yes.";
  EXPECT_THAT(get_error_message([&] { data::make_sample(*processor, record, 0); }, ExitCode::kBadData),
              AllOf(HasSubstr("sample spoken: its text has <|audio|>"), HasSubstr("not supported")));
}

TEST(Gemma4Processor, TemplateOfAnEarlierGemmaIsRefused) {
  const parity::TemporaryFolder folder;
  write_preset_config("gemma-4-tiny", folder.path());
  EXPECT_NE(models::load_processor(folder.path(), {}), nullptr);
  io::write_file(folder.path() / "chat_template.jinja",
                 std::string(resources().at("gemma-3-tiny/chat_template.jinja")));
  EXPECT_THAT(get_error_message([&] { models::load_processor(folder.path(), {}); }, ExitCode::kBadData),
              AllOf(HasSubstr("chat_template.jinja: the template writes <start_of_turn>"),
                    HasSubstr("older than the weights")));
}

}  // namespace
}  // namespace vlmtrain::models::gemma4
