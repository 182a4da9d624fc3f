#include "models/conversation_processor.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>

#include "models/expand_images.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/text/labels.h"

namespace vlmtrain::models {

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

void refuse_videos(const io::Record& record) {
  if (record.videos.empty()) return;
  throw data::SampleError("video for a family without",
                          fmt::format("sample {} has a video ({}), and this family takes no videos; drop the sample or "
                                      "take a model of another family",
                                      record.id, record.videos.front()));
}

/// A template whose answers have no end (llava_1_5) is for asking only; the model ends as its tokenizer's texts do.
std::string_view end_of_turn(const text::ChatTemplate& chat_template) {
  return chat_template.end_of_turn().empty() ? "</s>" : chat_template.end_of_turn();
}

}  // namespace

ConversationProcessor::ConversationProcessor(text::Tokenizer tokenizer, ProcessorSettings settings,
                                             std::string_view own_template, TileShape tile)
    : tokenizer_(std::move(tokenizer)),
      settings_(std::move(settings)),
      template_(&text::ChatTemplate::find(settings_.chat_template == "auto" ? own_template : settings_.chat_template)),
      tile_(tile),
      end_of_turn_id_(id_of(tokenizer_, end_of_turn(*template_))) {}

data::Sample ConversationProcessor::process(const io::Record& record, int64_t index) const {
  return with_pixels(outline(record, index), record);
}

data::Sample ConversationProcessor::process_prompt(const io::Record& record, int64_t index) const {
  return with_pixels(outline_prompt(record, index), record);
}

data::Sample ConversationProcessor::outline_prompt(const io::Record& record, int64_t index) const {
  std::vector<text::Turn> turns = record.turns;
  if (!turns.empty() && turns.back().role == text::Role::kAssistant) turns.pop_back();
  text::RenderedChat chat = template_->render(turns, /*add_generation_prompt=*/true);
  chat.answers.clear();
  return lay_out(record, index, chat);
}

data::Sample ConversationProcessor::outline(const io::Record& record, int64_t index) const {
  return lay_out(record, index, template_->render(record.turns, /*add_generation_prompt=*/false));
}

data::Sample ConversationProcessor::lay_out(const io::Record& record, int64_t index,
                                            const text::RenderedChat& chat) const {
  refuse_videos(record);
  const auto files = image_files(record);
  std::vector<ImagePlan> plans;
  for (const auto& file : files) {
    plans.push_back(read_image(record, [&] { return plan_of(file); }));
  }
  EncodedChat encoded = encode(chat, plans);

  data::Sample sample;
  int64_t tiles = 0, features = 0;
  for (const ImagePlan& image : plans) {
    tiles += image.tiles;
    features += image.image_tokens.value_or(image.tiles * tile_.image_tokens);
    if (image.grid) sample.grids.push_back(*image.grid);
  }
  sample.index = index;
  sample.id = record.id;
  sample.task = record.task;
  sample.images = static_cast<int64_t>(files.size());
  sample.is_label = encoded.is_label;
  sample.token_ids = encoded.token_ids;
  sample.image_token_positions = encoded.image_token_positions;
  if (sample.tokens() > settings_.max_length) {
    throw data::SampleError(
        "too long", fmt::format("sample {} has {} tokens, more than data.max_length={}; raise it, or shrink the images "
                                "with data.image_max_pixels",
                                record.id, sample.tokens(), settings_.max_length));
  }
  if (std::ssize(sample.image_token_positions) != features) {
    throw data::SampleError("image tokens in the text",
                            fmt::format("sample {} has {} image tokens in its text for {} image features; take the "
                                        "text {} out of the conversation",
                                        record.id, sample.image_token_positions.size(), features, text::kImageMark));
  }
  sample.position_ids = position_ids(encoded, plans);
  if (tiles > 0) {
    sample.tiles = at::empty({tiles, 3, tile_.height.value_or(tile_.side), tile_.side},
                             at::TensorOptions(at::kByte).device(at::kMeta));
  }
  return sample;
}

ImagePlan ConversationProcessor::plan_of(const std::filesystem::path& file) const {
  const auto size = image::read_image_size(file);
  try {
    return plan(size);
  } catch (const UserError& error) {
    throw data_error("{}: {}", file.string(), error.what());
  }
}

std::vector<int64_t> ConversationProcessor::position_ids(const EncodedChat& /*chat*/,
                                                         std::span<const ImagePlan> /*images*/) const {
  return {};
}

data::Sample ConversationProcessor::with_pixels(data::Sample sample, const io::Record& record) const {
  if (!sample.tiles.defined()) return sample;
  std::vector<at::Tensor> tiles;
  for (const auto& file : image_files(record)) {
    tiles.push_back(tiles_of(read_image(record, [&] { return image::decode_image_file(file); })));
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

std::vector<std::filesystem::path> ConversationProcessor::image_files(const io::Record& record) const {
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

int64_t id_of(const text::Tokenizer& tokenizer, std::string_view token) {
  const auto id = tokenizer.token_to_id(token);
  if (!id) throw data_error("the tokenizer has no token {}, which the chat template needs", token);
  return *id;
}

void check_vocabulary(const text::Tokenizer& tokenizer, int64_t vocab_size) {
  if (tokenizer.vocab_size() > vocab_size) {
    throw data_error(
        "tokenizer.json has {} tokens and config.json's vocab_size is {}; the embedding is too small; set "
        "vocab_size to {} and model.resize_embeddings=true, which adds rows",
        tokenizer.vocab_size(), vocab_size, tokenizer.vocab_size());
  }
}

EncodedChat encode_expanded(const text::Tokenizer& tokenizer, const text::RenderedChat& chat,
                            std::string_view image_text, std::span<const ImagePlan> images, int64_t image_token_id,
                            bool add_special_tokens) {
  std::vector<std::string> texts;
  for (const auto& image : images) texts.push_back(image.text);
  const auto expanded = expand_images(chat, image_text, texts);
  auto encoding = tokenizer.encode(expanded.text, add_special_tokens);
  EncodedChat encoded;
  encoded.is_label = text::answer_tokens(encoding, expanded.answers);
  encoded.token_ids = std::move(encoding.ids);
  for (int64_t place = 0; place < std::ssize(encoded.token_ids); ++place) {
    if (encoded.token_ids[static_cast<size_t>(place)] == image_token_id) encoded.image_token_positions.push_back(place);
  }
  return encoded;
}

text::Tokenizer load_tokenizer(const std::filesystem::path& folder) {
  const auto file = folder / "tokenizer.json";
  if (!std::filesystem::exists(file) && std::filesystem::exists(folder / "tokenizer.model")) {
    throw data_error(
        "{} has a tokenizer.model but no tokenizer.json, which is what is read; make it with transformers: "
        "AutoTokenizer.from_pretrained(\"{}\", use_fast=True).save_pretrained(\"{}\")",
        folder.string(), folder.string(), folder.string());
  }
  return text::Tokenizer::from_file(file);
}

}  // namespace vlmtrain::models
