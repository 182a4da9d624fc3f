#include "models/internvl/processor.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "models/internvl/image_text.h"
#include "models/processing/cut_tiles.h"
#include "models/processing/frame_normalization.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::models::internvl {

namespace {

/// transformers' tokenizers of InternVL 3 have one token more than the embedding has rows: the mark of videos, which is
/// never among the ids.
void check_tokenizer(const text::Tokenizer& tokenizer, const Config& config) {
  const int64_t image_token = id_of(tokenizer, kImageToken);
  if (image_token != config.image_token_id) {
    throw data_error("config.json's image_token_id is {}, but tokenizer.json gives {} the id {}", config.image_token_id,
                     kImageToken, image_token);
  }
  const int64_t rows = config.text.vocab_size;
  const bool ends_with_mark = tokenizer.vocab_size() == rows + 1 && tokenizer.token_to_id(text::kVideoMark) == rows;
  if (!ends_with_mark) check_vocabulary(tokenizer, rows);
}

}  // namespace

Processor::Processor(Config config, ImageProcessor images, VideoSettings videos, text::Tokenizer tokenizer,
                     text::ChatTemplate chat_template, const ProcessorSettings& settings)
    : ConversationProcessor(
          std::move(tokenizer), std::move(chat_template), settings,
          {{.height = images.tile().side, .width = images.tile().side}, config.image_tokens_per_tile()}),
      config_(std::move(config)),
      images_(images),
      videos_(videos) {
  check_tokenizer(this->tokenizer(), config_);
}

ImagePlan Processor::plan(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  const int64_t tiles = images_.grid_for(size, max_pixels).tiles();
  return {.text = image_text(tiles, config_.image_tokens_per_tile()), .pixel_rows = tiles};
}

at::Tensor Processor::pixels_of(const at::Tensor& image, std::optional<int64_t> max_pixels) const {
  return images_.process(image, max_pixels);
}

std::vector<SeenPicture> Processor::pictures_in(const at::Tensor& rows, const ImagePlan& medium, image::ImageSize size,
                                                std::optional<int64_t> max_pixels) const {
  if (medium.kind == data::MediumKind::kVideo) {
    auto frames = ConversationProcessor::pictures_in(rows, medium, size, max_pixels);
    for (size_t i = 0; i < frames.size(); ++i) frames[i].frame = static_cast<int64_t>(i);
    return frames;
  }
  const TileGrid grid = images_.grid_for(size, max_pixels);
  if (grid.cells() == 1) return ConversationProcessor::pictures_in(rows, medium, size, max_pixels);
  return {seen_together(rows.narrow(0, 0, grid.cells()), grid.rows, grid.columns),
          seen_overview(rows.select(0, grid.cells()))};
}

int64_t Processor::count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  constexpr int64_t kMarks = 2;  // <img> and </img>
  return images_.grid_for(size, max_pixels).tiles() * config_.image_tokens_per_tile() + kMarks;
}

std::optional<ShrinkRange> Processor::shrink_range(data::MediumKind /*kind*/) const {
  // Of a video, whose frames are one tile each, nothing comes of it; the pictures beside it do become smaller.
  const int64_t tile = images_.tile().side * images_.tile().side;
  return ShrinkRange{.least = tile, .step = tile};
}

int64_t Processor::most_positions() const {
  return config_.refuses_longer ? config_.text.max_positions : models::Processor::most_positions();
}

std::string Processor::beyond_positions(const std::string& id, int64_t tokens) const {
  return fmt::format(
      "sample {} has {} tokens, more than the model's positions (max_position_embeddings {}), behind which its rope "
      "scaling, dynamic, stretches all of them; set data.max_length to that or less, or shrink the images with "
      "data.image_max_pixels",
      id, tokens, config_.text.max_positions);
}

void Processor::check_video(const image::VideoInfo& /*info*/) const {
  check_frame_normalization(images_.tile().normalization, videos_.tile.normalization);
}

ImagePlan Processor::plan_video(const image::VideoInfo& info, std::optional<int64_t> /*max_pixels*/) const {
  const auto frames = std::ssize(videos_.sample(info));
  return {.text = video_text(frames, config_.image_tokens_per_tile()), .pixel_rows = frames, .frames = frames};
}

at::Tensor Processor::pixels_of_video(image::VideoFile& video, std::optional<int64_t> /*max_pixels*/) const {
  const auto frames = videos_.sample(video.info());
  const int64_t side = videos_.tile.side;
  at::Tensor tiles = at::empty({std::ssize(frames), 3, side, side}, at::kByte);
  int64_t next = 0;
  video.read(frames, [&](const at::Tensor& frame) {
    tiles.select(0, next++).copy_(image::resize(frame, side, side, videos_.tile.filter));
  });
  return tiles;
}

int64_t Processor::count_video_tokens(const image::VideoInfo& info, std::optional<int64_t> max_pixels) const {
  return std::ssize(tokenizer().encode(plan_video(info, max_pixels).text).ids);
}

EncodedChat Processor::encode(const text::RenderedChat& chat, std::span<const ImagePlan> images) const {
  EncodedChat encoded = encode_expanded(tokenizer(), chat, images, config_.image_token_id,
                                        /*add_special_tokens=*/!chat_template().writes_start());
  const auto beyond =
      std::ranges::find_if(encoded.token_ids, [&](int64_t id) { return id >= config_.text.vocab_size; });
  if (beyond != encoded.token_ids.end()) {
    throw data::SampleError("tokens without an embedding",
                            fmt::format("the text has the token {}, which is no video's mark here and is not in the "
                                        "model's vocabulary; take it out of the conversation",
                                        tokenizer().id_to_token(*beyond)));
  }
  return encoded;
}

}  // namespace vlmtrain::models::internvl
