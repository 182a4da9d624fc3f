#include "models/idefics3/processor.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "models/expand_images.h"
#include "models/idefics3/image_text.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/decode.h"
#include "vlmtrain/text/labels.h"

namespace vlmtrain::models::idefics3 {

namespace {

/// What `read` gives; its error is one of the record that names the image.
template <class Read>
auto read_image(const io::Record& record, const Read& read) {
  try {
    return read();
  } catch (const UserError& error) {
    throw data::SampleError("unreadable image", fmt::format("sample {}: {}", record.id, error.what()));
  }
}

int64_t id_of(const text::Tokenizer& tokenizer, std::string_view token) {
  const auto id = tokenizer.token_to_id(token);
  if (!id) throw data_error("the tokenizer has no token {}, which the chat template needs", token);
  return *id;
}

}  // namespace

Processor::Processor(Config config, ImageProcessor images, text::Tokenizer tokenizer, ProcessorSettings settings)
    : config_(std::move(config)),
      images_(std::move(images)),
      tokenizer_(std::move(tokenizer)),
      settings_(std::move(settings)),
      template_(&text::ChatTemplate::find(settings_.chat_template == "auto" ? "smolvlm" : settings_.chat_template)),
      end_of_turn_id_(id_of(tokenizer_, template_->end_of_turn())) {
  const int64_t image_token = id_of(tokenizer_, text::kImageMark);
  if (image_token != config_.image_token_id) {
    throw data_error("config.json's image_token_id is {}, but tokenizer.json gives {} the id {}",
                     config_.image_token_id, text::kImageMark, image_token);
  }
  if (tokenizer_.vocab_size() > config_.text.vocab_size) {
    throw data_error("tokenizer.json has {} tokens and config.json's vocab_size is {}; the embedding is too small",
                     tokenizer_.vocab_size(), config_.text.vocab_size);
  }
}

data::Sample Processor::process(const io::Record& record, int64_t index) const {
  return with_pixels(outline(record, index), record);
}

data::Sample Processor::process_prompt(const io::Record& record, int64_t index) const {
  std::vector<text::Turn> turns = record.turns;
  if (!turns.empty() && turns.back().role == text::Role::kAssistant) turns.pop_back();
  text::RenderedChat chat = template_->render(turns, /*add_generation_prompt=*/true);
  chat.answers.clear();
  return with_pixels(lay_out(record, index, chat), record);
}

data::Sample Processor::outline(const io::Record& record, int64_t index) const {
  return lay_out(record, index, template_->render(record.turns, /*add_generation_prompt=*/false));
}

data::Sample Processor::lay_out(const io::Record& record, int64_t index, const text::RenderedChat& chat) const {
  const auto files = image_files(record);
  std::vector<std::string> image_texts;
  int64_t tiles = 0;
  for (const auto& file : files) {
    const auto size = read_image(record, [&] { return image::read_image_size(file); });
    const TileGrid grid = images_.grid_for(size);
    image_texts.push_back(image_text(grid, config_.image_tokens_per_tile()));
    tiles += grid.tiles();
  }
  const auto expanded = expand_images(chat, template_->image_text(), image_texts);
  auto encoding = tokenizer_.encode(expanded.text);

  data::Sample sample;
  sample.index = index;
  sample.id = record.id;
  sample.task = record.task;
  sample.images = static_cast<int64_t>(files.size());
  sample.is_label = text::answer_tokens(encoding, expanded.answers);
  sample.token_ids = std::move(encoding.ids);
  if (sample.tokens() > settings_.max_length) {
    throw data::SampleError(
        "too long", fmt::format("sample {} has {} tokens, more than data.max_length={}; raise it, or shrink the images "
                                "with data.image_max_pixels",
                                record.id, sample.tokens(), settings_.max_length));
  }
  for (int64_t place = 0; place < sample.tokens(); ++place) {
    if (sample.token_ids[static_cast<size_t>(place)] == config_.image_token_id) {
      sample.image_token_positions.push_back(place);
    }
  }
  const int64_t features = tiles * config_.image_tokens_per_tile();
  if (std::ssize(sample.image_token_positions) != features) {
    throw data::SampleError("image tokens in the text",
                            fmt::format("sample {} has {} image tokens in its text for {} image features; take the "
                                        "text {} out of the conversation",
                                        record.id, sample.image_token_positions.size(), features, text::kImageMark));
  }
  if (tiles > 0) {
    const int64_t side = images_.settings().tile_size;
    sample.tiles = at::empty({tiles, 3, side, side}, at::TensorOptions(at::kByte).device(at::kMeta));
  }
  return sample;
}

data::Sample Processor::with_pixels(data::Sample sample, const io::Record& record) const {
  if (!sample.tiles.defined()) return sample;
  std::vector<at::Tensor> tiles;
  for (const auto& file : image_files(record)) {
    const auto picture = read_image(record, [&] { return image::decode_image_file(file); });
    tiles.push_back(images_.process(picture).tiles);
  }
  at::Tensor pixels = at::cat(tiles);
  if (pixels.sizes() != sample.tiles.sizes()) {
    throw data::SampleError("unreadable image",
                            fmt::format("sample {}: a picture changed its size while it was read; leave the data alone "
                                        "during a run",
                                        record.id));
  }
  sample.tiles = std::move(pixels);
  return sample;
}

std::vector<std::filesystem::path> Processor::image_files(const io::Record& record) const {
  const auto limit = settings_.max_images_per_sample;
  if (limit && static_cast<int64_t>(record.images.size()) > *limit) {
    throw data::SampleError("too many images",
                            fmt::format("sample {} has {} images, more than data.max_images_per_sample={}", record.id,
                                        record.images.size(), *limit));
  }
  std::vector<std::filesystem::path> files;
  for (const auto& image : record.images) files.push_back(settings_.image_root / image);
  return files;
}

}  // namespace vlmtrain::models::idefics3
