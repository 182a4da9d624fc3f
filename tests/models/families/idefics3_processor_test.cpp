#include <ATen/ops/equal.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "io/temporary_folder.h"
#include "models/checkpoint_copy.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/models/media_preview.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {
namespace {

using io::get_error_message;
using io::Role;
using testing::AllOf;
using testing::HasSubstr;

struct ProcessorMistake {
  const char* name;
  const char* file;
  void (*edit)(nlohmann::json& config);
  std::vector<std::string> expected_messages;
};

class ProcessorRefuses : public testing::TestWithParam<ProcessorMistake> {};

TEST_P(ProcessorRefuses, InconsistentFiles) {
  const CheckpointCopy copy("mixed_batch");
  copy.edit(GetParam().file, GetParam().edit);
  const auto message = get_error_message([&] { load_processor(copy.path(), {}); });
  for (const auto& expected : GetParam().expected_messages) EXPECT_THAT(message, HasSubstr(expected));
}

INSTANTIATE_TEST_SUITE_P(Mistakes, ProcessorRefuses,
                         testing::Values(ProcessorMistake{"TileSize",
                                                          "preprocessor_config.json",
                                                          [](auto& c) { c["max_image_size"]["longest_edge"] = 48; },
                                                          {"preprocessor_config.json", "48", "config.json", "32"}},
                                         ProcessorMistake{"ImageToken",
                                                          "config.json",
                                                          [](auto& c) { c["image_token_id"] = 5; },
                                                          {"image_token_id is 5", "tokenizer.json", "398"}},
                                         ProcessorMistake{"Vocabulary",
                                                          "config.json",
                                                          [](auto& c) { c["text_config"]["vocab_size"] = 399; },
                                                          {"vocab_size 399", "400 tokens"}},
                                         ProcessorMistake{
                                             "ProcessorType",
                                             "preprocessor_config.json",
                                             [](auto& c) { c["image_processor_type"] = "CLIPImageProcessor"; },
                                             {"preprocessor_config.json", "CLIPImageProcessor"}}),
                         [](const auto& instance) { return instance.param.name; });

TEST(LoadProcessor, UnknownChatTemplateIsAUsageError) {
  ProcessorSettings settings;
  settings.chat_template = "chatlm";
  EXPECT_THAT(
      get_error_message([&] { load_processor(parity::Case("mixed_batch").checkpoint(), settings); }, ExitCode::kUsage),
      AllOf(HasSubstr("chatlm"), HasSubstr("chatml")));
}

class Idefics3Processor : public testing::Test {
 protected:
  std::unique_ptr<Processor> processor() const { return load_processor(case_.checkpoint(), settings_); }

  /// Returns the reason under which the record is counted. Expects `expected_messages` in the
  /// error.
  std::string get_rejection_reason(const io::Record& record, const std::vector<std::string>& expected_messages) const {
    try {
      processor()->process(record, 0);
    } catch (const data::SampleError& error) {
      EXPECT_EQ(error.code(), ExitCode::kBadData);
      for (const auto& expected : expected_messages) EXPECT_THAT(error.what(), HasSubstr(expected));
      return error.reason();
    }
    return "accepted";
  }

  const parity::Case case_{"mixed_batch"};
  const std::vector<io::Record> records_ = case_.records();
  ProcessorSettings settings_ = case_.processor_settings();
};

TEST_F(Idefics3Processor, SampleLongerThanLimitIsRejected) {
  const auto& record = records_.at(3);
  ASSERT_EQ(processor()->process(record, 3).tokens(), 165);
  settings_.max_length = 165;
  EXPECT_EQ(get_rejection_reason(record, {}), "accepted");
  settings_.max_length = 164;
  settings_.on_too_long = data::LongSamplePolicy::kFail;
  EXPECT_EQ(get_rejection_reason(record, {"sample two", "165 tokens", "data.max_length=164", "data.image_max_pixels"}),
            "too long");
}

TEST_F(Idefics3Processor, LongSampleHasFewerTiles) {
  const auto& record = records_.at(3);
  const auto full_sample = processor()->process(record, 3);
  EXPECT_FALSE(full_sample.shrink_info);
  settings_.max_length = 164;
  const auto shrunk = processor()->process(record, 3);
  ASSERT_TRUE(shrunk.shrink_info);
  EXPECT_EQ(shrunk.shrink_info->tokens, 165);
  EXPECT_EQ(shrunk.shrink_info->tokens_after, shrunk.tokens());
  EXPECT_LE(shrunk.tokens(), 164);
  EXPECT_EQ(shrunk.label_tokens(), full_sample.label_tokens());
  EXPECT_EQ(shrunk.shrink_info->pixels, full_sample.pixel_values.size(0) * 32 * 32);
  EXPECT_EQ(shrunk.shrink_info->pixels_after, shrunk.pixel_values.size(0) * 32 * 32);
  EXPECT_EQ(data::get_sample_shape(processor()->process_headers(record, 3)), data::get_sample_shape(shrunk));

  // Same as data.image_max_pixels of that number; one more tile is too long.
  settings_.on_too_long = data::LongSamplePolicy::kFail;
  settings_.image_max_pixels = shrunk.shrink_info->image_max_pixels;
  const auto limited = processor()->process(record, 3);
  EXPECT_TRUE(at::equal(limited.pixel_values, shrunk.pixel_values));
  EXPECT_EQ(limited.token_ids, shrunk.token_ids);
  settings_.image_max_pixels = shrunk.shrink_info->image_max_pixels + 32 * 32;
  EXPECT_EQ(get_rejection_reason(record, {}), "too long");
}

TEST_F(Idefics3Processor, SampleThatExceedsLimitAtFloorIsTooLong) {
  settings_.max_length = 20;
  EXPECT_EQ(get_rejection_reason(records_.at(3), {"sample two", "165 tokens", "with its images at their minimum size",
                                                  "data.max_length=20"}),
            "too long");
  settings_.on_too_long = data::LongSamplePolicy::kDrop;
  try {
    processor()->process_headers(records_.at(3), 3);
    FAIL();
  } catch (const data::SampleTooLongError& error) {
    EXPECT_TRUE(error.is_dropped());
    EXPECT_EQ(error.tokens(), 165);
  }
}

TEST_F(Idefics3Processor, FewerPixelsMakeTheSampleShorter) {
  const auto& record = records_.at(3);
  const auto full_sample = processor()->process(record, 3);
  settings_.image_max_pixels = 2 * 32 * 32;
  const auto shrunk = processor()->process(record, 3);
  EXPECT_LT(shrunk.tokens(), full_sample.tokens());
  EXPECT_EQ(shrunk.label_tokens(), full_sample.label_tokens());
  EXPECT_EQ(std::ssize(shrunk.image_token_positions), shrunk.pixel_values.size(0) * 4);
}

TEST_F(Idefics3Processor, PreviewsShowTheTiles) {
  const auto& record = records_.at(3);
  for (const int64_t max_length : {1000, 164}) {
    SCOPED_TRACE(max_length);
    settings_.max_length = max_length;
    const auto sample = processor()->process(record, 3);
    const auto previews = processor()->preview_media(record, sample);
    int64_t row = 0;
    std::set<int64_t> media;
    for (const MediaPreview& preview : previews) {
      media.insert(preview.media_index);
      EXPECT_EQ(preview.tile_height, 32);
      for (int64_t top = 0; top < preview.pixels.size(1); top += 32) {
        for (int64_t left = 0; left < preview.pixels.size(2); left += 32) {
          EXPECT_TRUE(at::equal(preview.pixels.narrow(1, top, 32).narrow(2, left, 32), sample.pixel_values[row++]));
        }
      }
    }
    EXPECT_EQ(row, sample.pixel_values.size(0)) << "each tile is shown once, in the tower's order";
    EXPECT_EQ(media, (std::set<int64_t>{0, 1}));
    EXPECT_TRUE(previews.back().is_overview);
  }
  EXPECT_TRUE(processor()->preview_media(records_.at(0), processor()->process(records_.at(0), 0)).empty());
}

TEST_F(Idefics3Processor, MoreImagesThanTheLimitAreRefused) {
  settings_.max_images_per_sample = 2;
  EXPECT_EQ(get_rejection_reason(records_.at(3), {}), "accepted");
  settings_.max_images_per_sample = 1;
  EXPECT_EQ(get_rejection_reason(records_.at(3), {"sample two", "2 images", "data.max_images_per_sample=1"}),
            "too many images");
}

TEST_F(Idefics3Processor, ImageTokenInTextIsRefused) {
  io::Record record = records_.at(0);
  record.turns[0].text += " <image>";
  EXPECT_EQ(get_rejection_reason(record, {"sample words", "1 image tokens", "0 image features"}),
            "image tokens in the text");
}

TEST_F(Idefics3Processor, VideosAreRefused) {
  io::Record record = records_.at(0);
  record.videos = {"clip.mp4"};
  EXPECT_EQ(get_rejection_reason(record, {"sample words", "clip.mp4", "model family does not support"}),
            "unsupported video");
  EXPECT_THAT(get_error_message([&] { processor()->process_headers(record, 0); }),
              HasSubstr("model family does not support"));
}

TEST_F(Idefics3Processor, MissingImageIsNamed) {
  io::Record record = records_.at(1);
  record.images = {"nowhere.png"};
  EXPECT_THAT(get_error_message([&] { processor()->process(record, 1); }), HasSubstr("nowhere.png"));
}

TEST_F(Idefics3Processor, PromptEndsBeforeTheLastAnswer) {
  for (size_t i = 0; i < records_.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    const auto full_sample = processor()->process(records_[i], index);
    const auto prompt = processor()->process_prompt(records_[i], index);
    EXPECT_EQ(prompt.label_tokens(), 0);
    EXPECT_EQ(prompt.num_media(), full_sample.num_media());
    ASSERT_LT(prompt.tokens(), full_sample.tokens());
    const auto length = static_cast<size_t>(prompt.tokens());
    EXPECT_EQ(prompt.token_ids,
              std::vector(full_sample.token_ids.begin(), full_sample.token_ids.begin() + prompt.tokens()));
    // Only the model's own answer and the template's line break follow.
    EXPECT_EQ(full_sample.label_mask.at(length), 1) << records_[i].id;
    EXPECT_EQ(std::count(full_sample.label_mask.begin() + prompt.tokens(), full_sample.label_mask.end(), 0), 1)
        << records_[i].id;
  }
}

TEST_F(Idefics3Processor, OutlineIsSampleWithoutPixels) {
  for (const auto max_pixels : {std::optional<int64_t>(), std::optional<int64_t>(2 * 32 * 32)}) {
    settings_.image_max_pixels = max_pixels;
    std::set<int64_t> images;
    for (size_t i = 0; i < records_.size(); ++i) {
      SCOPED_TRACE(records_[i].id);
      const auto sample = processor()->process(records_[i], 7);
      const auto outline = processor()->process_headers(records_[i], 7);
      EXPECT_EQ(data::get_sample_shape(outline), data::get_sample_shape(sample));
      EXPECT_EQ(outline.token_ids, sample.token_ids);
      EXPECT_EQ(outline.label_mask, sample.label_mask);
      EXPECT_EQ(outline.image_token_positions, sample.image_token_positions);
      EXPECT_EQ(std::tie(outline.index, outline.id, outline.task), std::tie(sample.index, sample.id, sample.task));
      ASSERT_EQ(outline.pixel_values.defined(), sample.num_media() > 0);
      EXPECT_TRUE(!outline.pixel_values.defined() || outline.pixel_values.is_meta());
      EXPECT_TRUE(!sample.pixel_values.defined() || sample.pixel_values.is_cpu());
      images.insert(sample.num_media());
    }
    EXPECT_EQ(images, (std::set<int64_t>{0, 1, 2}));
  }
}

TEST_F(Idefics3Processor, OutlineRejectsWhatSampleRejects) {
  settings_.max_length = 164;
  settings_.on_too_long = data::LongSamplePolicy::kFail;
  EXPECT_THAT(get_error_message([&] { processor()->process_headers(records_.at(3), 3); }),
              HasSubstr("data.max_length=164"));
  settings_.max_images_per_sample = 1;
  EXPECT_THAT(get_error_message([&] { processor()->process_headers(records_.at(3), 3); }),
              HasSubstr("data.max_images_per_sample=1"));
  io::Record record = records_.at(0);
  record.turns[0].text += " <image>";
  EXPECT_THAT(get_error_message([&] { processor()->process_headers(record, 0); }), HasSubstr("0 image features"));
}

TEST_F(Idefics3Processor, TruncatedImagePassesOutlineOnly) {
  const parity::TemporaryFolder folder;
  const auto content = io::read_file(case_.images() / "tall.jpg");
  io::Record record = records_.at(1);
  record.images = {case_.images() / "tall.jpg"};
  const auto full_outline = processor()->process_headers(record, 1);
  record.images = {folder.path() / "tall.jpg"};
  io::write_file(folder.path() / "tall.jpg", content.substr(0, content.size() * 3 / 4));
  EXPECT_EQ(data::get_sample_shape(processor()->process_headers(record, 1)), data::get_sample_shape(full_outline));
  EXPECT_EQ(get_rejection_reason(record, {"tall.jpg"}), "unreadable image");
  io::write_file(folder.path() / "tall.jpg", content.substr(0, 20));
  EXPECT_THAT(get_error_message([&] { processor()->process_headers(record, 1); }), HasSubstr("tall.jpg"));
}

TEST_F(Idefics3Processor, AnswersEndWithEndOfTurn) {
  const auto sample = processor()->process(records_.at(3), 3);
  int64_t num_ends = 0;
  for (size_t i = 0; i < sample.token_ids.size(); ++i)
    num_ends += sample.label_mask[i] == 1 && sample.token_ids[i] == processor()->end_of_turn_id();
  EXPECT_EQ(num_ends, 2);
}

}  // namespace
}  // namespace vlmtrain::models
