#include "models/processing/conversation_processor.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "models/processing/chat_template.h"
#include "models/processing/media_checks.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/sample/notices.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/text/chat_template.h"
#include "vlmtrain/text/read_tokenizer.h"

namespace vlmtrain::models {

ConversationProcessor::ConversationProcessor(text::Tokenizer tokenizer, text::ChatTemplate chat_template,
                                             ProcessorSettings settings, TowerInputFormat input,
                                             std::optional<MaskInputSettings> masks)
    : tokenizer_(std::move(tokenizer)),
      settings_(std::move(settings)),
      chat_template_(std::move(chat_template)),
      tower_input_format_(input),
      mask_input_(std::move(masks)),
      end_of_turn_id_(find_token_id(tokenizer_, chat_template_.end_of_turn_token())) {}

data::Sample ConversationProcessor::process(const io::Record& record, int64_t index) const {
  return process_chat(record, index, render(record, /*as_prompt=*/false));
}

data::Sample ConversationProcessor::process_augmented(const io::Record& record, int64_t index, uint64_t seed) const {
  return process_chat(record, index, render(record, /*as_prompt=*/false),
                      image::sample_augmentation(settings_.augment, seed));
}

data::Sample ConversationProcessor::process_prompt(const io::Record& record, int64_t index) const {
  return process_chat(record, index, render(record, /*as_prompt=*/true));
}

data::Sample ConversationProcessor::process_prompt_headers(const io::Record& record, int64_t index) const {
  return process_headers(record, index, render(record, /*as_prompt=*/true));
}

text::RenderedChat ConversationProcessor::render(const io::Record& record, bool as_prompt) const {
  const std::vector<text::Turn> all_turns = make_turns(record);
  std::span<const text::Turn> turns = all_turns;
  try {
    if (!as_prompt) return chat_template_.render(turns, /*add_generation_prompt=*/false);
    if (!turns.empty() && turns.back().role == text::Role::kAssistant) turns = turns.first(turns.size() - 1);
    text::RenderedChat chat = chat_template_.render(turns, /*add_generation_prompt=*/true);
    chat.answers.clear();
    chat.notices.clear();
    return chat;
  } catch (const UserError& error) {
    throw data::SampleError("refused by the chat template", fmt::format("sample {}: {}", record.id, error.what()));
  }
}

data::Sample ConversationProcessor::process_headers(const io::Record& record, int64_t index) const {
  return process_headers(record, index, render(record, /*as_prompt=*/false));
}

data::Sample ConversationProcessor::process_chat(const io::Record& record, int64_t index,
                                                 const text::RenderedChat& chat,
                                                 const image::Augmentation& augmentation) const {
  std::vector<Medium> media = collect_media(record, chat);
  read_media_headers(record, media);
  const SampleLayout layout = find_fitting_layout(record, chat, media);
  data::Sample sample = add_empty_masks(make_sample(record, index, layout), record, media);
  sample.notices = chat.notices;
  add_frame_notices(media, layout, sample);
  return add_pixels(std::move(sample), record, media, layout.limits, augmentation);
}

data::Sample ConversationProcessor::process_headers(const io::Record& record, int64_t index,
                                                    const text::RenderedChat& chat) const {
  std::vector<Medium> media = collect_media(record, chat);
  read_media_headers(record, media);
  const SampleLayout layout = find_fitting_layout(record, chat, media);
  data::Sample sample = add_empty_masks(make_sample(record, index, layout), record, media);
  sample.notices = chat.notices;
  add_frame_notices(media, layout, sample);
  return sample;
}

ConversationProcessor::SampleLayout ConversationProcessor::lay_out_sample(const io::Record& record,
                                                                          const text::RenderedChat& chat,
                                                                          const std::vector<Medium>& media,
                                                                          const PixelLimits& limits) const {
  SampleLayout layout{.limits = limits, .media_layouts = {}, .chat = {}};
  layout.media_layouts.reserve(media.size());
  for (const Medium& medium : media) {
    layout.media_layouts.push_back(
        rethrow_medium_errors(record, medium.kind, [&] { return lay_out_medium(medium, limits); }));
  }
  layout.chat = encode(chat, layout.media_layouts);
  return layout;
}

data::Sample ConversationProcessor::make_sample(const io::Record& record, int64_t index,
                                                const SampleLayout& layout) const {
  data::Sample sample;
  int64_t rows = 0, features = 0;
  for (const MediaLayout& media_layout : layout.media_layouts) {
    rows += media_layout.pixel_rows;
    // Resizing allocates the resized image or frame and an intermediate result. Each is hardly
    // larger than the rows of pixels made from it.
    constexpr int64_t kNumResizeBuffers = 2;
    const int64_t row_bytes = media_layout.pixel_rows * tower_input_format_.row.bytes();
    const int64_t frames = media_layout.grid ? media_layout.grid->frames : 1;
    sample.decode_bytes =
        std::max(sample.decode_bytes, media_layout.decode_bytes + row_bytes + kNumResizeBuffers * row_bytes / frames);
    features += media_layout.image_tokens.value_or(media_layout.pixel_rows * tower_input_format_.image_tokens);
    if (media_layout.grid) sample.patch_grids.push_back(*media_layout.grid);
    if (media_layout.kind == data::MediaKind::kVolume) {
      sample.modalities.insert(sample.modalities.end(), static_cast<size_t>(media_layout.pixel_rows),
                               media_layout.modality);
    }
    sample.add_medium(media_layout.kind, media_layout.frames);
  }
  sample.index = index;
  sample.id = record.id;
  sample.task = record.task;
  sample.label_mask = layout.chat.label_mask;
  sample.token_ids = layout.chat.token_ids;
  sample.image_token_positions = layout.chat.image_token_positions;
  sample.shrink_info = layout.shrink_info;
  if (std::ssize(sample.image_token_positions) != features) {
    throw data::SampleError(
        "image tokens in the text",
        fmt::format("sample {} has {} image tokens in its text for {} image features; remove the text {}, or the "
                    "model's image token, from the conversation",
                    record.id, sample.image_token_positions.size(), features, text::kImagePlaceholder));
  }
  check_sample_memory(sample, rows * tower_input_format_.row.bytes());
  sample.position_ids = make_position_ids(layout.chat, layout.media_layouts);
  if (rows > 0) {
    sample.pixel_values = at::empty(tower_input_format_.row.sizes(rows),
                                    at::TensorOptions(tower_input_format_.row.dtype).device(at::kMeta));
  }
  return sample;
}

void ConversationProcessor::check_sample_memory(const data::Sample& sample, int64_t pixel_bytes) const {
  if (sample.decode_bytes + pixel_bytes <= compute_max_sample_bytes(get_host_limit_bytes())) return;
  throw data::SampleError(
      "too large for the memory",
      fmt::format("sample {}: its pixels take {} and preprocessing {} more, beyond the limit of a quarter of the "
                  "available {}; lower data.image_max_pixels or data.video_max_frames",
                  sample.id, format_bytes(pixel_bytes), format_bytes(sample.decode_bytes),
                  format_bytes(get_host_limit_bytes())));
}

int64_t find_token_id(const text::Tokenizer& tokenizer, std::string_view token) {
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

EncodedChat encode_with_media(const text::Tokenizer& tokenizer, const text::RenderedChat& chat,
                              std::span<const MediaLayout> images, int64_t image_token_id, bool add_special_tokens,
                              std::optional<int64_t> video_token_id) {
  std::vector<std::string> expansions;
  for (const auto& image : images) expansions.push_back(image.text);
  const auto expanded_chat = expand_media(chat, expansions);
  auto encoding = tokenizer.encode(expanded_chat.text, add_special_tokens);
  EncodedChat encoded_chat;
  encoded_chat.label_mask = text::compute_label_mask(encoding, expanded_chat.text, expanded_chat.answers);
  encoded_chat.token_ids = std::move(encoding.ids);
  for (int64_t position = 0; position < std::ssize(encoded_chat.token_ids); ++position) {
    const int64_t token = encoded_chat.token_ids[static_cast<size_t>(position)];
    if (token == image_token_id || token == video_token_id) encoded_chat.image_token_positions.push_back(position);
  }
  return encoded_chat;
}

text::Tokenizer load_tokenizer(const std::filesystem::path& folder) {
  const auto file = folder / "tokenizer.json";
  if (!std::filesystem::exists(file) && std::filesystem::exists(folder / "tokenizer.model")) {
    throw data_error(
        "{} has a tokenizer.model but no tokenizer.json, which is required; create it with transformers: "
        "AutoTokenizer.from_pretrained(\"{}\", use_fast=True).save_pretrained(\"{}\")",
        folder.string(), folder.string(), folder.string());
  }
  return text::read_tokenizer(folder);
}

}  // namespace vlmtrain::models
