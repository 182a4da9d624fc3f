#include "models/qwen2_vl/processor.h"

#include <utility>

#include "models/processing/conversation_processor.h"
#include "models/qwen2_vl/media_readers.h"
#include "models/qwen2_vl/position_ids.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models::qwen2_vl {

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
    data::PatchGrid tokens = compute_token_grid(*layout.grid, vision_);
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
  return {.row = {.height = vision.temporal_patch_size * vision.patch_size, .width = vision.patch_size}};
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
