#include "models/qwen2_vl/processor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "models/processing/frame_sampling.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models::qwen2_vl {

namespace {

/// Builder of position ids, [axes · tokens]: for all tokens their time, then their row, then their
/// column.
class PositionIdBuilder {
 public:
  PositionIdBuilder(int64_t tokens, data::VideoTokenLayout layout)
      : num_tokens_(tokens),
        video_layout_(layout),
        position_ids_(static_cast<size_t>(data::kNumPositionAxes * tokens)) {}

  /// Adds the text tokens before token `token`.
  void add_text(int64_t token) {
    VLMTRAIN_CHECK(token >= next_token_index_ && token <= num_tokens_, "token {} of {} after {}", token, num_tokens_,
                   next_token_index_);
    while (next_token_index_ < token) {
      add(next_position_, next_position_, next_position_);
      ++next_position_;
    }
  }

  /// Adds the tokens of an image or video.
  void add(const VisionSpan& span) {
    for (int64_t frame = 0; frame < span.grid.frames; ++frame) {
      const int64_t time = compute_time_position(frame, span);
      for (int64_t row = 0; row < span.grid.rows; ++row) {
        for (int64_t column = 0; column < span.grid.columns; ++column)
          add(next_position_ + time, next_position_ + row, next_position_ + column);
      }
    }
    const int64_t side = std::max(span.grid.rows, span.grid.columns);
    const int64_t last_frame_time = compute_time_position(span.grid.frames - 1, span);
    next_position_ +=
        video_layout_ == data::VideoTokenLayout::kReleasedCode ? std::max(side, last_frame_time + 1) : side;
  }

  /// Adds the remaining text tokens and returns all ids. Call once.
  std::vector<int64_t> finish() {
    add_text(num_tokens_);
    return std::move(position_ids_);
  }

 private:
  /// Returns the time of a temporal patch relative to the span. Multiplies in fp32 and truncates,
  /// as transformers does.
  static int64_t compute_time_position(int64_t frame, const VisionSpan& span) {
    return static_cast<int64_t>(static_cast<float>(frame) * span.time_step);
  }

  void add(int64_t time, int64_t row, int64_t column) {
    const std::array<int64_t, data::kNumPositionAxes> axes{time, row, column};
    for (size_t axis = 0; axis < axes.size(); ++axis) {
      position_ids_[axis * static_cast<size_t>(num_tokens_) + static_cast<size_t>(next_token_index_)] = axes[axis];
    }
    ++next_token_index_;
  }

  int64_t num_tokens_;
  data::VideoTokenLayout video_layout_;
  std::vector<int64_t> position_ids_;
  int64_t next_token_index_ = 0;
  int64_t next_position_ = 0;  // position of the next text token
};

void check_token_id(const text::Tokenizer& tokenizer, std::string_view token, std::string_view key, int64_t id) {
  const int64_t actual_id = find_token_id(tokenizer, token);
  if (actual_id != id) {
    throw data_error("config.json's {} is {}, but tokenizer.json gives {} the id {}", key, id, token, actual_id);
  }
}

}  // namespace

std::vector<int64_t> make_position_ids(int64_t tokens, std::span<const VisionSpan> spans,
                                       data::VideoTokenLayout layout) {
  if (spans.empty()) return {};
  PositionIdBuilder builder(tokens, layout);
  for (const VisionSpan& span : spans) {
    builder.add_text(span.first_token);
    builder.add(span);
  }
  return builder.finish();
}

std::string format_vision_block(std::string_view pad) {
  return fmt::format("{}{}{}", kVisionStart, pad, kVisionEnd);
}

GridProcessor::GridProcessor(const VisionConfig& vision_config, const VocabularyInfo& tokens, PixelSettings images,
                             text::Tokenizer tokenizer, text::ChatTemplate chat_template,
                             const ProcessorSettings& settings)
    : ConversationProcessor(std::move(tokenizer), std::move(chat_template), settings,
                            {{.height = vision_config.temporal_patch_size * vision_config.patch_size,
                              .width = vision_config.patch_size}}),
      vision_config_(vision_config),
      vocabulary_info_(tokens),
      image_settings_(images),
      sampling_fps_(settings.video_fps) {
  check_vocabulary(this->tokenizer(), tokens.vocab_size);
  check_token_id(this->tokenizer(), kImagePad, "image_token_id", tokens.image);
  check_token_id(this->tokenizer(), kVideoPad, "video_token_id", tokens.video);
}

MediaLayout GridProcessor::make_media_layout(const data::PatchGrid& grid, std::string_view pad) const {
  const int64_t tokens = grid.patches() / vision_config_.patches_per_token();
  std::string text;
  for (int64_t i = 0; i < tokens; ++i) text += pad;
  return {.text = std::move(text), .pixel_rows = grid.patches(), .image_tokens = tokens, .grid = grid};
}

image::ImageSize GridProcessor::compute_image_size(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  PixelSettings settings = image_settings_;
  settings.budget = limit_pixel_budget(settings.budget, max_pixels);
  return compute_resized_size(size, settings, vision_config_);
}

MediaLayout GridProcessor::lay_out_image(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  return make_media_layout(compute_grid(1, compute_image_size(size, max_pixels), vision_config_), kImagePad);
}

at::Tensor GridProcessor::preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const {
  PatchWriter patches(1, compute_image_size({image.size(1), image.size(2)}, max_pixels), image_settings_.filter,
                      vision_config_);
  patches.add(image);
  return patches.finish();
}

std::vector<MediaPreview> GridProcessor::preview_images(const at::Tensor& rows, const MediaLayout& layout,
                                                        image::ImageSize /*size*/,
                                                        std::optional<int64_t> /*max_pixels*/) const {
  // All frames of an image's patches are equal, so one of them is shown.
  const int64_t count = std::max<int64_t>(layout.frames, 1);
  std::vector<MediaPreview> previews;
  previews.reserve(static_cast<size_t>(count));
  for (int64_t frame = 0; frame < count; ++frame) {
    at::Tensor pixels = extract_frame(rows, *layout.grid, frame, vision_config_);
    const int64_t height = pixels.size(1), width = pixels.size(2);
    previews.push_back({.pixels = std::move(pixels), .frame_index = frame, .tile_height = height, .tile_width = width});
  }
  return previews;
}

void GridProcessor::check_size(image::ImageSize size) const {
  smart_resize(size, vision_config_.pixels_per_token_side(), image_settings_.budget);
}

int64_t GridProcessor::count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  return compute_grid(1, compute_image_size(size, max_pixels), vision_config_).patches() /
         vision_config_.patches_per_token();
}

std::optional<ShrinkRange> GridProcessor::get_shrink_range(data::MediaKind kind) const {
  // 64 tokens of 28 x 28 pixels have 224 x 224 pixels, the input size of the first CLIP models.
  // Chosen without measurement (docs/data.md).
  constexpr int64_t kMinImageTokens = 64;
  const int64_t side = vision_config_.pixels_per_token_side(), token_pixels = side * side;
  const int64_t min_pixels = kind == data::MediaKind::kVideo ? min_frame_pixels() : image_settings_.budget.min_pixels;
  return ShrinkRange{
      .min_pixels = std::max(kMinImageTokens, (min_pixels + token_pixels - 1) / token_pixels) * token_pixels,
      .step = token_pixels};
}

data::PatchGrid GridProcessor::compute_video_grid(const image::VideoInfo& info,
                                                  std::optional<int64_t> max_pixels) const {
  const auto frames = std::ssize(select_frames(info));
  return compute_grid(frames, compute_frame_size(frames, info.size, max_pixels), vision_config_);
}

at::Tensor GridProcessor::preprocess_video(image::VideoFile& video, std::optional<int64_t> max_pixels) const {
  const auto frames = select_frames(video.info());
  const auto count = std::ssize(frames);
  PatchWriter patches(count, compute_frame_size(count, video.info().size, max_pixels), frame_filter(), vision_config_);
  video.read_frames(frames, [&](const at::Tensor& frame) { patches.add(frame); });
  return patches.finish();
}

EncodedChat GridProcessor::encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const {
  return encode_with_media(tokenizer(), chat, images, vocabulary_info_.image,
                           /*add_special_tokens=*/!chat_template().writes_bos_token(), vocabulary_info_.video);
}

Processor::Processor(const Config& config, PixelSettings images, VideoSettings videos, text::Tokenizer tokenizer,
                     text::ChatTemplate chat_template, const ProcessorSettings& settings)
    : GridProcessor(config.vision, {config.image_token_id, config.video_token_id, config.text.vocab_size}, images,
                    std::move(tokenizer), std::move(chat_template), settings),
      tokens_per_second_(config.tokens_per_second),
      video_settings_(videos),
      video_layout_(settings.video_layout) {
  video_settings_.limits.max_frames = std::min(video_settings_.limits.max_frames, settings.video_max_frames);
  video_settings_.limits.max_listed_frames = settings.video_max_frames;
}

std::vector<int64_t> Processor::select_frames(const image::VideoInfo& info) const {
  return video_settings_.select_frames(info, sampling_fps(), vision_config());
}

image::ImageSize Processor::compute_frame_size(int64_t frames, image::ImageSize size,
                                               std::optional<int64_t> max_pixels) const {
  PixelSettings settings = video_settings_.compute_frame_settings(frames, vision_config());
  settings.budget = limit_pixel_budget(settings.budget, max_pixels);
  return compute_resized_size(size, settings, vision_config());
}

void Processor::check_video(const image::VideoInfo& info) const {
  check_frame_normalization(image_normalization(), video_settings_.pixels.normalization);
  if (!info.is_frame_list) reject_fps_conflict(video_settings_.limits);
}

MediaLayout Processor::lay_out_video(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const {
  const auto frames = std::ssize(select_frames(info));
  MediaLayout video = make_media_layout(compute_video_grid(info, max_pixels), kVideoPad);
  video.frames = frames;
  if (tokens_per_second_) {
    const double sampled_fps = static_cast<double>(frames) / static_cast<double>(info.num_frames) * get_fps(info);
    const auto patch_seconds =
        static_cast<float>(static_cast<double>(vision_config().temporal_patch_size) / sampled_fps);
    video.time_step = static_cast<float>(*tokens_per_second_) * patch_seconds;
  }
  return video;
}

int64_t Processor::count_video_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const {
  return compute_video_grid(info, max_pixels).patches() / vision_config().patches_per_token();
}

std::vector<int64_t> Processor::make_position_ids(const EncodedChat& chat, std::span<const MediaLayout> images) const {
  std::vector<VisionSpan> spans;
  size_t first = 0;
  for (const MediaLayout& image : images) {
    const data::PatchGrid tokens = compute_token_grid(*image.grid, vision_config());
    spans.push_back({chat.image_token_positions.at(first), tokens, image.time_step});
    first += static_cast<size_t>(tokens.patches());
  }
  return qwen2_vl::make_position_ids(std::ssize(chat.token_ids), spans, video_layout_);
}

}  // namespace vlmtrain::models::qwen2_vl
