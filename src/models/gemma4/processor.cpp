#include "models/gemma4/processor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "models/media/medium.h"
#include "models/media/patch_writer.h"
#include "models/processing/chat_encoder.h"
#include "models/processing/conversation_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/models/media_preview.h"

namespace vlmtrain::models::gemma4 {

namespace {

using image::ImageSize;

constexpr int64_t kNumMarkerTokens = 2;  // image_start and image_end

/// Returns the size that an image or frame of `size` is resized to. `max_pixels` is an additional
/// limit; nothing: no such limit.
ImageSize compute_size(ImageSize size, const PixelSettings& settings, const PatchShape& shape,
                       std::optional<int64_t> max_pixels) {
  return compute_resized_size(size, limit_token_budget(settings.max_tokens, max_pixels, shape), shape);
}

/// Returns the grid of patches of `frames` frames of `size`; `max_pixels` as in compute_size().
data::PatchGrid compute_grid(int64_t frames, ImageSize size, const PixelSettings& settings, const PatchShape& shape,
                             std::optional<int64_t> max_pixels) {
  return shape.patch_format().compute_grid(frames, compute_size(size, settings, shape, max_pixels));
}

/// Returns the range of budgets that all images and frames can be shrunk to.
ShrinkRange make_shrink_range(const PatchShape& shape) {
  const int64_t step = kTokenBudgets.front() * shape.pixels_per_token();  // other budgets are multiples
  return {.min_pixels = step, .step = step};
}

std::string format_block(std::string_view token, int64_t count, const MediaTokenTexts& texts) {
  std::string text = texts.image_start;
  for (int64_t i = 0; i < count; ++i) text += token;
  return text += texts.image_end;
}

/// Returns the number of tokens of time stamps and markers.
int64_t count_frame_marker_tokens(const std::vector<std::string>& timestamps, const MediaTokenIds& ids,
                                  const std::filesystem::path& folder) {
  if (std::filesystem::exists(folder / "tokenizer.json")) {
    const text::Tokenizer tokenizer = text::read_tokenizer(folder);
    const MediaTokenTexts texts = find_media_token_texts(tokenizer, ids);
    return std::ssize(tokenizer.encode(format_video_text(timestamps, 0, texts)).ids);
  }
  // A space follows each time stamp, and one separates two frames.
  int64_t tokens = std::ssize(timestamps) - 1;
  for (const std::string& timestamp : timestamps) tokens += std::ssize(timestamp) + 1 + kNumMarkerTokens;
  return tokens;
}

/// Converts an image to patches.
class BudgetImageReader final : public ImageReader {
 public:
  BudgetImageReader(const PixelSettings& settings, const PatchShape& shape, MediaTokenTexts texts)
      : settings_(settings), shape_(shape), texts_(std::move(texts)) {}

  MediaLayout lay_out(ImageSize size, std::optional<int64_t> max_pixels) const override {
    const auto grid = compute_grid(1, size, settings_, shape_, max_pixels);
    const int64_t tokens = grid.patches() / shape_.patch_format().patches_per_token();
    return {
        .text = format_image_text(tokens, texts_), .pixel_rows = grid.patches(), .image_tokens = tokens, .grid = grid};
  }
  ImageView compute_view(ImageSize size, std::optional<int64_t> max_pixels) const override {
    return make_resized_view(size, compute_size(size, settings_, shape_, max_pixels));
  }
  at::Tensor preprocess(const at::Tensor& image, std::optional<int64_t> max_pixels) const override {
    const ImageSize size = compute_size({image.size(1), image.size(2)}, settings_, shape_, max_pixels);
    PatchWriter patches(1, size, settings_.filter, shape_.patch_format());
    patches.add(image);
    return patches.finish();
  }
  std::vector<MediaPreview> preview(const at::Tensor& rows, const MediaLayout& layout, ImageSize /*size*/,
                                    std::optional<int64_t> /*max_pixels*/) const override {
    return preview_frames(rows, *layout.grid, 1, shape_.patch_format());
  }
  std::optional<ShrinkRange> get_shrink_range() const override { return make_shrink_range(shape_); }
  std::optional<int64_t> count_tokens(ImageSize size, std::optional<int64_t> max_pixels) const override {
    const auto grid = compute_grid(1, size, settings_, shape_, max_pixels);
    return grid.patches() / shape_.patch_format().patches_per_token() + kNumMarkerTokens;
  }

 private:
  PixelSettings settings_;
  PatchShape shape_;
  MediaTokenTexts texts_;
};

/// Converts a video to the patches of its frames, with time stamps between them.
class TimestampedVideoReader final : public VideoReader {
 public:
  TimestampedVideoReader(VideoSettings settings, const PatchShape& shape, MediaTokenTexts texts)
      : settings_(std::move(settings)), shape_(shape), texts_(std::move(texts)) {}

  void check(const image::VideoInfo& info) const override {
    if (!info.is_frame_list) reject_fps_conflict(settings_);
  }
  MediaLayout lay_out(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const override {
    const auto frames = settings_.select_frames(info);
    const auto grid = compute_grid(std::ssize(frames), info.size, settings_.pixels, shape_, max_pixels);
    const int64_t tokens = grid.patches() / shape_.patch_format().patches_per_token();
    return {.text = format_video_text(make_timestamps(frames, settings_.get_frame_rate(info)), tokens / grid.frames,
                                      texts_),
            .pixel_rows = grid.patches(),
            .image_tokens = tokens,
            .grid = grid,
            .frames = grid.frames};
  }
  at::Tensor preprocess(image::VideoFile& video, std::optional<int64_t> max_pixels) const override {
    const auto frames = settings_.select_frames(video.info());
    const ImageSize size = compute_size(video.info().size, settings_.pixels, shape_, max_pixels);
    PatchWriter patches(std::ssize(frames), size, settings_.pixels.filter, shape_.patch_format());
    video.read_frames(frames, [&](const at::Tensor& frame) { patches.add(frame); });
    return patches.finish();
  }
  std::vector<MediaPreview> preview(const at::Tensor& rows, const MediaLayout& layout) const override {
    return preview_frames(rows, *layout.grid, layout.frames, shape_.patch_format());
  }
  std::optional<ShrinkRange> get_shrink_range() const override { return make_shrink_range(shape_); }

 private:
  VideoSettings settings_;
  PatchShape shape_;
  MediaTokenTexts texts_;
};

/// Refuses texts with the token of audio. The model would read the embedding of that token, which
/// transformers replaces.
class AudioRefusingEncoder final : public ChatEncoder {
 public:
  AudioRefusingEncoder(text::Tokenizer tokenizer, text::ChatTemplate chat_template, const MediaTokenIds& ids)
      : ChatEncoder(std::move(tokenizer), std::move(chat_template),
                    ChatEncoderSettings{.image_token_id = ids.image, .video_token_id = ids.video}),
        audio_token_id_(ids.audio) {}

  EncodedChat encode(const text::RenderedChat& chat, std::span<const MediaLayout> media) const override {
    EncodedChat encoded = ChatEncoder::encode(chat, media);
    if (std::ranges::find(encoded.token_ids, audio_token_id_) != encoded.token_ids.end()) {
      throw data::SampleError("audio tokens in the text",
                              fmt::format("its text has {}, which stands for audio, and audio is not supported; remove "
                                          "it from the conversation",
                                          tokenizer().id_to_token(audio_token_id_)));
    }
    return encoded;
  }

 private:
  int64_t audio_token_id_;
};

}  // namespace

MediaTokenTexts find_media_token_texts(const text::Tokenizer& tokenizer, const MediaTokenIds& ids) {
  const auto added_tokens = tokenizer.added_tokens();
  const auto find_text = [&](const char* key, int64_t id) {
    const std::string_view text = tokenizer.id_to_token(id);
    if (std::ranges::find(added_tokens, text) == added_tokens.end()) {
      throw data_error(
          "config.json: {} is {}, but tokenizer.json has no added token of this id; use files of one checkpoint", key,
          id);
    }
    return std::string(text);
  };
  return {.image = find_text("image_token_id", ids.image),
          .video = find_text("video_token_id", ids.video),
          .image_start = find_text("boi_token_id", ids.image_start),
          .image_end = find_text("eoi_token_id", ids.image_end)};
}

std::string format_image_text(int64_t tokens, const MediaTokenTexts& texts) {
  return format_block(texts.image, tokens, texts);
}

std::string format_video_text(const std::vector<std::string>& timestamps, int64_t tokens_per_frame,
                              const MediaTokenTexts& texts) {
  const std::string block = format_block(texts.video, tokens_per_frame, texts);
  std::vector<std::string> frames;
  frames.reserve(timestamps.size());
  for (const std::string& timestamp : timestamps) frames.push_back(fmt::format("{} {}", timestamp, block));
  return fmt::format("{}", fmt::join(frames, " "));
}

data::SampleShape compute_image_sample_shape(const PixelSettings& settings, const PatchShape& shape, ImageSize size) {
  auto sample = shape.patch_format().make_sample_shape(compute_grid(1, size, settings, shape, std::nullopt));
  sample.tokens += kNumMarkerTokens;
  return sample;
}

data::SampleShape compute_video_sample_shape(const VideoSettings& settings, const ProcessorConfig& config,
                                             const image::VideoInfo& video, const std::filesystem::path& folder) {
  const auto frames = settings.select_frames(video);
  const auto grid = compute_grid(std::ssize(frames), video.size, settings.pixels, config.patches, std::nullopt);
  auto sample = config.patches.patch_format().make_sample_shape(grid);
  sample.tokens +=
      count_frame_marker_tokens(make_timestamps(frames, settings.get_frame_rate(video)), config.tokens, folder);
  sample.num_images = 0;
  sample.num_videos = 1;
  sample.video_frames = grid.frames;
  return sample;
}

ProcessorOverrides make_processor_overrides(const PatchShape& shape, const std::filesystem::path& folder,
                                            const ProcessorSettings& settings, bool has_videos) {
  const bool has_pixel_limit = settings.image_max_pixels.has_value();
  const bool saves_video_sampling = has_videos || !has_default_video_sampling(settings);
  ProcessorOverrides overrides{.creates_video_config = saves_video_sampling,
                               .video_processor_type = std::string(get_video_processor_type(shape))};
  if (has_pixel_limit) {
    const int64_t max_tokens = read_image_settings(folder, shape, settings.image_max_pixels).max_tokens;
    overrides.edit_image_settings = [max_tokens](auto& file) { file["max_soft_tokens"] = max_tokens; };
  }
  if (!has_pixel_limit && !saves_video_sampling) return overrides;
  const auto videos = VideoSettings::read(folder, shape, settings);
  if (!videos.num_frames && settings.video_max_frames != ProcessorSettings().video_max_frames) {
    overrides.unsaved_settings.push_back(
        fmt::format("{}={}: transformers' {} cannot combine a frame limit with a frame rate",
                    keys::data::kVideoMaxFrames, settings.video_max_frames, overrides.video_processor_type));
  }
  overrides.edit_video_settings = [=](auto& file) {
    file["max_soft_tokens"] = videos.pixels.max_tokens;
    if (saves_video_sampling) write_frame_sampling(file, videos);
  };
  return overrides;
}

std::unique_ptr<Processor> make_processor(const ProcessorConfig& config, const PixelSettings& images,
                                          const VideoSettings& videos, text::Tokenizer tokenizer,
                                          text::ChatTemplate chat_template, const ProcessorSettings& settings) {
  auto encoder = std::make_unique<AudioRefusingEncoder>(std::move(tokenizer), std::move(chat_template), config.tokens);
  check_vocabulary(encoder->tokenizer(), config.vocab_size);
  const MediaTokenTexts texts = find_media_token_texts(encoder->tokenizer(), config.tokens);
  // The published models write box_2d: y before x, in thousandths.
  return std::make_unique<ConversationProcessor>(
      ProcessorParts{.encoder = std::move(encoder),
                     .readers = {.images = std::make_unique<BudgetImageReader>(images, config.patches, texts),
                                 .videos = std::make_unique<TimestampedVideoReader>(videos, config.patches, texts)},
                     .input = {.row = config.patches.patch_format().row()},
                     .boxes = {.notation = CoordinateNotation::kNormalized1000,
                               .box = "[{y1}, {x1}, {y2}, {x2}]",
                               .point = "[{y1}, {x1}]"}},
      settings);
}

}  // namespace vlmtrain::models::gemma4
