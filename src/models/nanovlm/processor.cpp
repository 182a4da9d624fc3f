#include "models/nanovlm/processor.h"

#include "models/processing/cut_tiles.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/text/read_tokenizer.h"

namespace vlmtrain::models::nanovlm {

text::Tokenizer load_tokenizer(const Config& config, const std::filesystem::path& folder) {
  const auto file = folder / "tokenizer.json";
  if (!std::filesystem::exists(file)) {
    throw data_error(
        "{} has no tokenizer.json, as nanoVLM's checkpoints only name their tokenizer; fetch the tokenizer.json of {} "
        "(lm_tokenizer in config.json) into that folder",
        folder.string(), config.tokenizer_name.empty() ? "the text model" : config.tokenizer_name);
  }
  return text::read_tokenizer(folder, list_extra_tokens(folder));
}

Processor::Processor(Config config, ImageProcessor images, text::Tokenizer tokenizer, text::ChatTemplate chat_template,
                     ProcessorSettings settings)
    : ConversationProcessor(
          std::move(tokenizer), std::move(chat_template), std::move(settings),
          {{.height = config.vision.image_size, .width = config.vision.image_size}, config.image_tokens_per_tile()}),
      config_(std::move(config)),
      images_(std::move(images)) {
  if (!config_.images_before_text()) {
    image_token_id_ = find_token_id(this->tokenizer(), config_.extra_token("image_token"));
  }
  check_vocabulary(this->tokenizer(), config_.text.vocab_size);
}

MediaLayout Processor::layout_image(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  const TileGrid grid = images_.compute_grid(size, max_pixels);
  return {config_.images_before_text() ? "" : format_image_text(config_, grid), grid.tiles()};
}

at::Tensor Processor::preprocess_image(const at::Tensor& image, std::optional<int64_t> max_pixels) const {
  return images_.process(image, max_pixels);
}

std::vector<MediaPreview> Processor::preview_images(const at::Tensor& rows, const MediaLayout& /*medium*/,
                                                    image::ImageSize size, std::optional<int64_t> max_pixels) const {
  const TileGrid grid = images_.compute_grid(size, max_pixels);
  std::vector<MediaPreview> previews;
  if (grid.has_global_image) previews.push_back(make_overview_preview(rows.select(0, 0)));
  const int64_t first = grid.has_global_image ? 1 : 0;
  previews.push_back(make_tiled_preview(rows.narrow(0, first, grid.cells()), grid.rows, grid.columns));
  return previews;
}

int64_t Processor::count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  return count_image_text(config_, images_.compute_grid(size, max_pixels));
}

std::optional<ShrinkRange> Processor::shrink_range(data::MediaKind /*kind*/) const {
  if (!config_.max_image_size) return std::nullopt;
  const int64_t tile = config_.vision.image_size * config_.vision.image_size;
  return ShrinkRange{.min_pixels = tile, .step = tile};
}

std::string Processor::describe_position_overflow(const std::string& id, int64_t tokens) const {
  return fmt::format(
      "sample {} has {} tokens, more than the model's positions (lm_max_position_embeddings {}), behind which nanoVLM "
      "stretches all of them; set data.max_length to that or less, or shrink the images with data.image_max_pixels",
      id, tokens, config_.max_positions);
}

EncodedChat Processor::encode(const text::RenderedChat& chat, std::span<const MediaLayout> images) const {
  return config_.images_before_text() ? encode_after_images(chat, images) : encode_with_tokens(chat, images);
}

EncodedChat Processor::encode_with_tokens(const text::RenderedChat& chat, std::span<const MediaLayout> images) const {
  std::vector<MediaLayout> numbered(images.begin(), images.end());
  for (size_t i = 0; i < numbered.size() && numbered.size() > 1; ++i) {
    numbered[i].text.insert(0, fmt::format("<image: {}>", i));
  }
  return encode_with_images(tokenizer(), chat, numbered, image_token_id_,
                            /*add_special_tokens=*/false);
}

EncodedChat Processor::encode_after_images(const text::RenderedChat& chat, std::span<const MediaLayout> images) const {
  constexpr int64_t kAnyToken = 0;  // its embedding is replaced by an image feature
  EncodedChat text = encode_with_images(tokenizer(), chat, images, image_token_id_,
                                        /*add_special_tokens=*/!chat_template().writes_bos());
  int64_t features = 0;
  for (const MediaLayout& image : images) features += image.pixel_rows * config_.image_tokens_per_tile();
  text.token_ids.insert(text.token_ids.begin(), static_cast<size_t>(features), kAnyToken);
  text.is_label.insert(text.is_label.begin(), static_cast<size_t>(features), 0);
  for (int64_t position = 0; position < features; ++position) text.image_token_positions.push_back(position);
  return text;
}

}  // namespace vlmtrain::models::nanovlm
