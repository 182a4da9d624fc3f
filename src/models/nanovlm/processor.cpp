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
  return text::read_tokenizer(folder, extra_tokens_in_order(folder));
}

Processor::Processor(Config config, ImageProcessor images, text::Tokenizer tokenizer, text::ChatTemplate chat_template,
                     ProcessorSettings settings)
    : ConversationProcessor(
          std::move(tokenizer), std::move(chat_template), std::move(settings),
          {{.height = config.vision.image_size, .width = config.vision.image_size}, config.image_tokens_per_tile()}),
      config_(std::move(config)),
      images_(std::move(images)) {
  if (!config_.images_before_text()) {
    image_token_id_ = id_of(this->tokenizer(), config_.extra_token("image_token"));
  }
  check_vocabulary(this->tokenizer(), config_.text.vocab_size);
}

ImagePlan Processor::plan(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  const TileGrid grid = images_.grid_for(size, max_pixels);
  return {config_.images_before_text() ? "" : image_text(config_, grid), grid.tiles()};
}

at::Tensor Processor::pixels_of(const at::Tensor& image, std::optional<int64_t> max_pixels) const {
  return images_.process(image, max_pixels);
}

std::vector<SeenPicture> Processor::pictures_in(const at::Tensor& rows, const ImagePlan& /*medium*/,
                                                image::ImageSize size, std::optional<int64_t> max_pixels) const {
  const TileGrid grid = images_.grid_for(size, max_pixels);
  std::vector<SeenPicture> pictures;
  if (grid.with_whole_picture) pictures.push_back(seen_overview(rows.select(0, 0)));
  const int64_t first = grid.with_whole_picture ? 1 : 0;
  pictures.push_back(seen_together(rows.narrow(0, first, grid.cells()), grid.rows, grid.columns));
  return pictures;
}

int64_t Processor::count_tokens(image::ImageSize size, std::optional<int64_t> max_pixels) const {
  return count_image_text(config_, images_.grid_for(size, max_pixels));
}

std::optional<ShrinkRange> Processor::shrink_range(data::MediumKind /*kind*/) const {
  if (!config_.max_image_size) return std::nullopt;
  const int64_t tile = config_.vision.image_size * config_.vision.image_size;
  return ShrinkRange{.least = tile, .step = tile};
}

std::string Processor::beyond_positions(const std::string& id, int64_t tokens) const {
  return fmt::format(
      "sample {} has {} tokens, more than the model's positions (lm_max_position_embeddings {}), behind which nanoVLM "
      "stretches all of them; set data.max_length to that or less, or shrink the images with data.image_max_pixels",
      id, tokens, config_.max_positions);
}

EncodedChat Processor::encode(const text::RenderedChat& chat, std::span<const ImagePlan> images) const {
  return config_.images_before_text() ? encode_behind_images(chat, images) : encode_at_tokens(chat, images);
}

EncodedChat Processor::encode_at_tokens(const text::RenderedChat& chat, std::span<const ImagePlan> images) const {
  std::vector<ImagePlan> marked(images.begin(), images.end());
  for (size_t i = 0; i < marked.size() && marked.size() > 1; ++i) {
    marked[i].text.insert(0, fmt::format("<image: {}>", i));
  }
  return encode_expanded(tokenizer(), chat, marked, image_token_id_,
                         /*add_special_tokens=*/false);
}

EncodedChat Processor::encode_behind_images(const text::RenderedChat& chat, std::span<const ImagePlan> images) const {
  constexpr int64_t kAnyToken = 0;  // its embedding is replaced by an image feature
  EncodedChat text = encode_expanded(tokenizer(), chat, images, image_token_id_,
                                     /*add_special_tokens=*/!chat_template().writes_start());
  int64_t features = 0;
  for (const ImagePlan& image : images) features += image.pixel_rows * config_.image_tokens_per_tile();
  text.token_ids.insert(text.token_ids.begin(), static_cast<size_t>(features), kAnyToken);
  text.is_label.insert(text.is_label.begin(), static_cast<size_t>(features), 0);
  for (int64_t place = 0; place < features; ++place) text.image_token_positions.push_back(place);
  return text;
}

}  // namespace vlmtrain::models::nanovlm
