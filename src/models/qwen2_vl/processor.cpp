#include "models/qwen2_vl/processor.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "models/media/medium.h"
#include "models/media/patch_writer.h"
#include "models/processing/conversation_processor.h"
#include "models/qwen2_vl/image_processor.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/models/media_preview.h"

namespace vlmtrain::models::qwen2_vl {

namespace {

/// Returns the range for images or frames whose processor has a minimum of `min_pixels` pixels.
ShrinkRange make_shrink_range(int64_t min_pixels, const VisionConfig& vision) {
  // 64 tokens of 28 x 28 pixels have 224 x 224 pixels, the input size of the first CLIP models.
  // Chosen without measurement (docs/reference/data-formats.md).
  constexpr int64_t kMinImageTokens = 64;
  const int64_t side = vision.pixels_per_token_side(), token_pixels = side * side;
  return {.min_pixels = std::max(kMinImageTokens, (min_pixels + token_pixels - 1) / token_pixels) * token_pixels,
          .step = token_pixels};
}

}  // namespace

std::string format_vision_block(std::string_view pad) {
  return fmt::format("{}{}{}", kVisionStart, pad, kVisionEnd);
}

MediaLayout make_media_layout(const data::PatchGrid& grid, std::string_view pad, const VisionConfig& vision) {
  const int64_t tokens = grid.patches() / vision.patches_per_token();
  std::string text;
  for (int64_t i = 0; i < tokens; ++i) text += pad;
  return {.text = std::move(text), .pixel_rows = grid.patches(), .image_tokens = tokens, .grid = grid};
}

FrameLimits apply_max_frames(FrameLimits limits, int64_t video_max_frames) {
  limits.max_frames = std::min(limits.max_frames, video_max_frames);
  limits.max_listed_frames = video_max_frames;
  return limits;
}

image::ImageSize GridImageReader::compute_size(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  PixelSettings settings = settings_;
  settings.budget = limit_pixel_budget(settings.budget, max_pixels);
  return compute_resized_size(size, settings, vision_);
}

void GridImageReader::check_size(image::ImageSize size) const {
  smart_resize(size, vision_.pixels_per_token_side(), settings_.budget);
}

MediaLayout GridImageReader::lay_out(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  return make_media_layout(vision_.patch_format().compute_grid(1, compute_size(size, max_pixels)), kImagePad, vision_);
}

ImageView GridImageReader::compute_view(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  return make_resized_view(size, compute_size(size, max_pixels));
}

at::Tensor GridImageReader::preprocess(const at::Tensor& image, std::optional<int64_t> max_pixels) const {
  PatchWriter patches(1, compute_size({image.size(1), image.size(2)}, max_pixels), settings_.filter,
                      vision_.patch_format());
  patches.add(image);
  return patches.finish();
}

std::vector<MediaPreview> GridImageReader::preview(const at::Tensor& rows, const MediaLayout& layout,
                                                   image::ImageSize /*size*/,
                                                   std::optional<int64_t> /*max_pixels*/) const {
  // All frames of an image's patches are equal, so one of them is shown.
  return preview_frames(rows, *layout.grid, 1, vision_.patch_format());
}

std::optional<ShrinkRange> GridImageReader::get_shrink_range() const {
  return make_shrink_range(settings_.budget.min_pixels, vision_);
}

std::optional<int64_t> GridImageReader::count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  return vision_.patch_format().compute_grid(1, compute_size(size, max_pixels)).patches() / vision_.patches_per_token();
}

void GridVideoReader::check(const image::VideoInfo& info) const {
  check_frame_normalization(settings_.image.normalization, settings_.frame.normalization);
  if (!info.is_frame_list) reject_fps_conflict(settings_.limits);
  smart_resize(info.size, vision_.pixels_per_token_side(), settings_.image.budget);
}

at::Tensor GridVideoReader::preprocess(image::VideoFile& video, std::optional<int64_t> max_pixels) const {
  const auto frames = select_frames(video.info());
  const auto count = std::ssize(frames);
  PatchWriter patches(count, compute_frame_size(count, video.info().size, max_pixels), settings_.frame.filter,
                      vision_.patch_format());
  video.read_frames(frames, [&](const at::Tensor& frame) { patches.add(frame); });
  return patches.finish();
}

std::vector<MediaPreview> GridVideoReader::preview(const at::Tensor& rows, const MediaLayout& layout) const {
  return preview_frames(rows, *layout.grid, layout.frames, vision_.patch_format());
}

std::optional<ShrinkRange> GridVideoReader::get_shrink_range() const {
  return make_shrink_range(settings_.min_frame_pixels, vision_);
}

data::PatchGrid GridVideoReader::compute_video_grid(const image::VideoInfo& info,
                                                    std::optional<int64_t> max_pixels) const {
  const auto frames = std::ssize(select_frames(info));
  return vision_.patch_format().compute_grid(frames, compute_frame_size(frames, info.size, max_pixels));
}

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

namespace {

class PairedFrameReader final : public GridVideoReader {
 public:
  PairedFrameReader(const Config& config, const VideoSettings& videos, const GridVideoSettings& settings)
      : GridVideoReader(config.vision, settings),
        tokens_per_second_(config.tokens_per_second),
        video_settings_(videos) {}

  MediaLayout lay_out(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const override {
    const auto frames = std::ssize(select_frames(info));
    MediaLayout video = make_media_layout(compute_video_grid(info, max_pixels), kVideoPad, vision_config());
    video.frames = frames;
    if (tokens_per_second_) {
      const double sampled_fps = static_cast<double>(frames) / static_cast<double>(info.num_frames) * get_fps(info);
      const auto patch_seconds =
          static_cast<float>(static_cast<double>(vision_config().temporal_patch_size) / sampled_fps);
      video.time_step = static_cast<float>(*tokens_per_second_) * patch_seconds;
    }
    return video;
  }
  std::optional<int64_t> count_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const override {
    return compute_video_grid(info, max_pixels).patches() / vision_config().patches_per_token();
  }

 private:
  std::vector<int64_t> select_frames(const image::VideoInfo& info) const override {
    return video_settings_.select_frames(info, sampling_fps(), vision_config());
  }
  image::ImageSize compute_frame_size(int64_t frames, image::ImageSize size,
                                      std::optional<int64_t> max_pixels) const override {
    PixelSettings settings = video_settings_.compute_frame_settings(frames, vision_config());
    settings.budget = limit_pixel_budget(settings.budget, max_pixels);
    return compute_resized_size(size, settings, vision_config());
  }

  std::optional<int64_t> tokens_per_second_;
  VideoSettings video_settings_;
};

}  // namespace

GridEncoder::GridEncoder(const VisionConfig& vision, const VocabularyInfo& tokens, const VideoPositions& videos,
                         text::Tokenizer tokenizer, text::ChatTemplate chat_template)
    : ChatEncoder(std::move(tokenizer), std::move(chat_template),
                  {.image_token_id = tokens.image, .video_token_id = tokens.video}),
      vision_(vision),
      video_positions_(videos) {
  check_vocabulary(this->tokenizer(), tokens.vocab_size);
  check_token_id(this->tokenizer(), kImagePad, "image_token_id", tokens.image);
  check_token_id(this->tokenizer(), kVideoPad, "video_token_id", tokens.video);
}

std::vector<int64_t> GridEncoder::make_position_ids(const EncodedChat& chat, std::span<const MediaLayout> media) const {
  std::vector<VisionSpan> spans;
  size_t first = 0;
  for (const MediaLayout& layout : media) {
    data::PatchGrid tokens = vision_.patch_format().compute_token_grid(*layout.grid);
    // Temporal patches that text separates are positioned as images.
    const int64_t num_spans = video_positions_.are_frames_separate ? std::exchange(tokens.frames, 1) : 1;
    for (int64_t i = 0; i < num_spans; ++i) {
      spans.push_back({chat.image_token_positions.at(first), tokens, layout.time_step});
      first += static_cast<size_t>(tokens.patches());
    }
  }
  return qwen2_vl::make_position_ids(std::ssize(chat.token_ids), spans, video_positions_.layout);
}

TowerInputFormat make_patch_format(const VisionConfig& vision) {
  return {.row = vision.patch_format().row()};
}

namespace {

/// Returns the format of the published models: Qwen2.5-VL writes pixels of the resized image, Qwen2-VL
/// thousandths between tokens of its own.
BoxFormat make_box_format(const Config& config) {
  if (config.vision.uses_qwen2_5_layers) return {.notation = CoordinateNotation::kAbsolute};
  return {.notation = CoordinateNotation::kNormalized1000,
          .box = "<|box_start|>({x1},{y1}),({x2},{y2})<|box_end|>",
          .point = "<|box_start|>({x1},{y1})<|box_end|>",
          .name = "<|object_ref_start|>{name}<|object_ref_end|>"};
}

}  // namespace

std::unique_ptr<Processor> make_processor(const Config& config, const PixelSettings& images, VideoSettings videos,
                                          text::Tokenizer tokenizer, text::ChatTemplate chat_template,
                                          const ProcessorSettings& settings) {
  videos.limits = apply_max_frames(videos.limits, settings.video_max_frames);
  const GridVideoSettings grid_settings{.image = images,
                                        .frame = videos.pixels,
                                        .limits = videos.limits,
                                        .min_frame_pixels = videos.pixels.budget.min_pixels,
                                        .sampling_fps = settings.video_fps};
  return std::make_unique<ConversationProcessor>(
      ProcessorParts{
          .encoder = std::make_unique<GridEncoder>(
              config.vision,
              GridEncoder::VocabularyInfo{config.image_token_id, config.video_token_id, config.text.vocab_size},
              GridEncoder::VideoPositions{.layout = settings.video_layout}, std::move(tokenizer),
              std::move(chat_template)),
          .readers = {.images = std::make_unique<GridImageReader>(config.vision, images),
                      .videos = std::make_unique<PairedFrameReader>(config, videos, grid_settings)},
          .input = make_patch_format(config.vision),
          .boxes = make_box_format(config)},
      settings);
}

}  // namespace vlmtrain::models::qwen2_vl
