#include "models/idefics3/processor.h"

#include <ATen/ops/cat.h>

#include "models/idefics3/image_text.h"
#include "models/idefics3/video_text.h"
#include "models/processing/cut_tiles.h"
#include "models/processing/frame_normalization.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models::idefics3 {

Processor::Processor(Config config, ImageProcessor images, std::optional<VideoSettings> videos,
                     text::Tokenizer tokenizer, text::ChatTemplate chat_template, ProcessorSettings settings)
    : ConversationProcessor(std::move(tokenizer), std::move(chat_template), std::move(settings),
                            {{.height = images.settings().tile_size, .width = images.settings().tile_size},
                             config.image_tokens_per_tile()}),
      config_(std::move(config)),
      images_(images),
      videos_(videos) {
  const int64_t image_token = find_token_id(this->tokenizer(), text::kImagePlaceholder);
  if (image_token != config_.image_token_id) {
    throw data_error("config.json's image_token_id is {}, but tokenizer.json gives {} the id {}",
                     config_.image_token_id, text::kImagePlaceholder, image_token);
  }
  check_vocabulary(this->tokenizer(), config_.text.vocab_size);
}

MediaLayout Processor::layout_image(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  const TileGrid grid = images_.compute_grid(size, max_pixels);
  return {format_image_text(grid, config_.image_tokens_per_tile()), grid.tiles()};
}

at::Tensor Processor::preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const {
  return images_.process(image, max_pixels).tiles;
}

std::vector<MediaPreview> Processor::preview_images(const at::Tensor& rows, const MediaLayout& layout,
                                                    image::ImageSize size, std::optional<int64_t> max_pixels) const {
  if (layout.kind == data::MediaKind::kVideo) {
    auto frames = ConversationProcessor::preview_images(rows, layout, size, max_pixels);
    for (size_t i = 0; i < frames.size(); ++i) frames[i].frame_index = static_cast<int64_t>(i);
    return frames;
  }
  const TileGrid grid = images_.compute_grid(size, max_pixels);
  if (!grid.is_split()) return ConversationProcessor::preview_images(rows, layout, size, max_pixels);
  const int64_t cells = grid.tiles() - 1;
  return {make_tiled_preview(rows.narrow(0, 0, cells), grid.rows, grid.columns),
          make_overview_preview(rows.select(0, cells))};
}

int64_t Processor::count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  return std::ssize(tokenizer().encode(layout_image(size, max_pixels).text).ids);
}

std::optional<ShrinkRange> Processor::shrink_range(data::MediaKind /*kind*/) const {
  if (!images_.settings().do_image_splitting) return std::nullopt;
  const int64_t tile = images_.settings().tile_size * images_.settings().tile_size;
  return ShrinkRange{.min_pixels = tile, .step = tile};
}

void Processor::check_video(const image::VideoInfo& /*info*/) const {
  check_frame_normalization(images_.settings().normalization, videos_->frame.normalization);
}

MediaLayout Processor::layout_video(const image::VideoInfo& info, std::optional<int64_t> /*max_pixels*/) const {
  const VideoText video = make_video_text(*videos_, info, config_.image_tokens_per_tile());
  return {.text = video.text, .pixel_rows = video.frames, .frames = video.frames};
}

at::Tensor Processor::preprocess_video(image::VideoFile& video, std::optional<int64_t> /*max_pixels*/) const {
  const ImageProcessor frames(videos_->frame);
  std::vector<at::Tensor> tiles;
  video.read(videos_->sample(video.info()),
             [&](const at::Tensor& frame) { tiles.push_back(frames.process(frame).tiles); });
  return at::cat(tiles);
}

int64_t Processor::count_video_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const {
  return std::ssize(tokenizer().encode(layout_video(info, max_pixels).text).ids);
}

EncodedChat Processor::encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const {
  return encode_with_images(tokenizer(), chat, images, config_.image_token_id,
                            /*add_special_tokens=*/false);
}

}  // namespace vlmtrain::models::idefics3
