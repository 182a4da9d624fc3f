#include "models/processing/conversation_processor.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <utility>

#include "models/media/mask_input.h"
#include "models/media/media_opener.h"
#include "models/processing/chat_encoder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/data/sample/statistics.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/models/media_preview.h"

namespace vlmtrain::models {

namespace {

/// Returns the format of a family's boxes with the notation of `output` (data.boxes.out).
BoxFormat select_box_format(const BoxFormat& family, data::BoxOutput output) {
  using Output = data::BoxOutput;
  if (output == Output::kUnchanged && family.notation == CoordinateNotation::kLocationTokens) {
    BoxFormat plain;
    plain.name = family.name;
    return plain;
  }
  if (output == Output::kModel || output == Output::kUnchanged) return family;
  const CoordinateNotation notation = output == Output::kAbsolute         ? CoordinateNotation::kAbsolute
                                      : output == Output::kNormalized1    ? CoordinateNotation::kNormalized1
                                      : output == Output::kNormalized1000 ? CoordinateNotation::kNormalized1000
                                                                          : CoordinateNotation::kLocationTokens;
  if (notation == family.notation) return family;
  BoxFormat format;
  format.notation = notation;
  format.name = family.name;
  if (notation == CoordinateNotation::kLocationTokens) {
    format.box = "{y1}{x1}{y2}{x2}";
    format.point = "{y1}{x1}";
  }
  return format;
}

data::SampleError make_changed_image_error(const io::Record& record) {
  return {"unreadable image",
          fmt::format("sample {}: an image changed its size while it was read; do not change data during a run",
                      record.id)};
}

}  // namespace

ConversationProcessor::ConversationProcessor(ProcessorParts parts, const ProcessorSettings& settings)
    : encoder_(std::move(parts.encoder)),
      opener_(std::move(parts.readers), settings.volume, settings.max_images_per_sample),
      fitter_({.max_length = settings.max_length,
               .on_too_long = settings.on_too_long,
               .max_positions = parts.max_positions,
               .position_description = std::move(parts.position_description)},
              parts.input.row.pixels()),
      input_(parts.input),
      augment_(settings.augment),
      box_format_(select_box_format(parts.boxes, settings.boxes.output)),
      box_conversion_(settings.boxes),
      trains_on_last_answer_(settings.train_on == data::TrainedAnswers::kLast) {
  if (parts.masks) masks_.emplace(*std::move(parts.masks));
}

data::Sample ConversationProcessor::process(const io::Record& record, int64_t index) const {
  return process(record, index, /*as_prompt=*/false, {});
}

data::Sample ConversationProcessor::process_augmented(const io::Record& record, int64_t index, uint64_t seed) const {
  return process(record, index, /*as_prompt=*/false, image::sample_augmentation(augment_, seed));
}

data::Sample ConversationProcessor::process_prompt(const io::Record& record, int64_t index) const {
  return process(record, index, /*as_prompt=*/true, {});
}

data::Sample ConversationProcessor::process_headers(const io::Record& record, int64_t index) const {
  return make_header_sample(record, index, open(record, /*as_prompt=*/false));
}

data::Sample ConversationProcessor::process_prompt_headers(const io::Record& record, int64_t index) const {
  return make_header_sample(record, index, open(record, /*as_prompt=*/true));
}

data::Sample ConversationProcessor::process(const io::Record& record, int64_t index, bool as_prompt,
                                            const image::Augmentation& augmentation) const {
  OpenedRecord opened = open(record, as_prompt);
  const image::Augmentation applied = opened.objects ? augment_objects(record, opened, augmentation) : augmentation;
  data::Sample sample = make_header_sample(record, index, opened);
  if (sample.pixel_values.defined()) read_pixels(record, opened, applied, sample);
  return sample;
}

image::Augmentation ConversationProcessor::augment_objects(const io::Record& record, OpenedRecord& opened,
                                                           const image::Augmentation& augmentation) const {
  const image::Augmentation without_motion{.brightness_factor = augmentation.brightness_factor};
  const image::Augmentation limited = opened.objects->limit_augmentation(augmentation);
  if (limited == without_motion) return without_motion;
  SampleLayout& layout = opened.layout;
  text::RenderedChat chat = opened.objects->write(opened.chat, layout.limits, limited);
  EncodedChat encoded_chat = encode_record(record, chat, layout.media_layouts, *encoder_);
  if (encoded_chat.token_ids.size() != layout.chat.token_ids.size()) return without_motion;
  if (encoded_chat.label_mask != layout.chat.label_mask) return without_motion;
  layout.chat = std::move(encoded_chat);
  layout.written_chat = std::move(chat);
  return limited;
}

text::RenderedChat ConversationProcessor::render(const io::Record& record, bool as_prompt) const {
  if (!record.objects.empty()) return *open(record, as_prompt).layout.written_chat;
  text::RenderedChat chat = render_whole(record, as_prompt, nullptr);
  return record.window ? render_window(*encoder_, record, chat) : chat;
}

WrittenRecord ConversationProcessor::write_objects(const io::Record& record) const {
  if (record.objects.empty()) return {.turns = record.turns, .coordinate_maps = {}};
  const OpenedRecord opened = open(record, /*as_prompt=*/false);
  return opened.objects->write_record(opened.layout.limits);
}

text::RenderedChat ConversationProcessor::render_whole(const io::Record& record, bool as_prompt,
                                                       const ObjectWriter* objects) const {
  std::vector<text::Turn> turns = record.turns;
  if (objects != nullptr) turns = objects->insert_tokens(std::move(turns));
  turns = opener_.expand_slice_placeholders(record, std::move(turns));
  if (record.is_document()) return encoder_->render_document(turns.front(), as_prompt);
  if (trains_on_last_answer_) {
    const auto last_answer = std::ranges::find(turns.rbegin(), turns.rend(), io::Role::kAssistant, &text::Turn::role);
    for (auto turn = last_answer; turn != turns.rend(); ++turn) {
      if (turn != last_answer) turn->loss_weight = 0;
    }
  }
  return encoder_->render(record.id, turns, as_prompt, record.template_variables);
}

ConversationProcessor::OpenedRecord ConversationProcessor::open(const io::Record& record, bool as_prompt) const {
  opener_.check_supported_media(record);  // before the template, which may reject the placeholders of such media
  OpenedRecord opened{};
  if (!record.objects.empty()) opened.objects = std::make_unique<ObjectWriter>(record, box_format_, box_conversion_);
  opened.chat = render_whole(record, as_prompt, opened.objects.get());
  opened.media = opener_.open(record, opened.chat, chat_template().source().name);
  if (masks_) MaskTargets::check_media(record, opened.media);
  if (opened.objects) opened.objects->locate(opened.media);
  opened.layout = fitter_.fit(record, opened.chat, opened.media, opened.objects.get(), *encoder_);
  return opened;
}

data::Sample ConversationProcessor::make_header_sample(const io::Record& record, int64_t index,
                                                       const OpenedRecord& opened) const {
  const SampleLayout& layout = opened.layout;
  data::Sample sample;
  int64_t rows = 0, features = 0;
  for (const MediaLayout& media_layout : layout.media_layouts) {
    rows += media_layout.pixel_rows;
    features += media_layout.image_tokens.value_or(media_layout.pixel_rows * input_.image_tokens);
    sample.decode_bytes = std::max(sample.decode_bytes, compute_decode_bytes(media_layout, input_.row.bytes()));
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
  sample.label_weights = layout.chat.label_weights;
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
  check_sample_memory(sample, rows * input_.row.bytes());
  sample.position_ids = encoder_->make_position_ids(layout.chat, layout.media_layouts);
  if (rows > 0) {
    sample.pixel_values = at::empty(input_.row.sizes(rows), at::TensorOptions(input_.row.dtype).device(at::kMeta));
  }
  if (masks_) masks_->add_meta_masks(record, opened.media, sample);
  sample.notices = opened.chat.notices;
  for (size_t i = 0; i < opened.media.size(); ++i) {
    add_notice(opened.media[i]->find_omitted_parts(layout.media_layouts[i]), sample.notices);
  }
  return sample;
}

void ConversationProcessor::read_pixels(const io::Record& record, OpenedRecord& opened,
                                        const image::Augmentation& augmentation, data::Sample& sample) const {
  at::Tensor pixels = at::empty(sample.pixel_values.sizes(), sample.pixel_values.scalar_type());
  MaskTargets::allocate_pixels(sample.masks);
  int64_t num_filled_rows = 0, image_index = 0;
  std::vector<io::Notice> notices;  // about pixels, so headers do not have them
  for (const auto& medium : opened.media) {
    at::Tensor image;
    const at::Tensor rows = rethrow_medium_errors(
        record, medium->kind(), [&] { return medium->preprocess(opened.layout.limits, augmentation, image, notices); });
    if (rows.sizes().slice(1) != pixels.sizes().slice(1) || rows.size(0) > pixels.size(0) - num_filled_rows) {
      throw make_changed_image_error(record);
    }
    pixels.narrow(0, num_filled_rows, rows.size(0)).copy_(rows);
    if (masks_ && image.defined()) masks_->set_pixels(record, image_index++, image, sample.masks);
    num_filled_rows += rows.size(0);
  }
  if (num_filled_rows != pixels.size(0)) throw make_changed_image_error(record);
  sample.pixel_values = std::move(pixels);
  if (masks_) masks_->set_targets(record, opened.media, augmentation, sample.masks, notices);
  data::report_media_notices(record.id, notices);
  for (io::Notice& notice : notices) add_notice(std::move(notice), sample.notices);
}

std::vector<MediaPreview> ConversationProcessor::preview_media(const io::Record& record,
                                                               const data::Sample& sample) const {
  std::vector<MediaPreview> previews;
  if (!sample.pixel_values.defined()) return previews;
  const OpenedRecord opened = open(record, /*as_prompt=*/false);
  int64_t first_row = 0;
  for (size_t i = 0; i < opened.media.size(); ++i) {
    const Medium& medium = *opened.media[i];
    const MediaLayout& layout = opened.layout.media_layouts[i];
    if (first_row + layout.pixel_rows > sample.pixel_values.size(0)) throw make_changed_image_error(record);
    const at::Tensor rows = sample.pixel_values.narrow(0, first_row, layout.pixel_rows);
    for (MediaPreview& preview : medium.preview(rows, layout, opened.layout.limits)) {
      preview.media_index = static_cast<int64_t>(i);
      if (preview.is_volume())
        preview.name = io::describe_volume(record, static_cast<size_t>(&medium.file() - record.images.data()));
      if (opened.objects && medium.image_size() && !preview.is_crop)
        preview.boxes = opened.objects->get_preview_boxes(medium, opened.layout.limits,
                                                          {preview.pixels.size(1), preview.pixels.size(2)});
      previews.push_back(std::move(preview));
    }
    first_row += layout.pixel_rows;
  }
  return previews;
}

std::vector<at::Tensor> ConversationProcessor::load_masks(const io::Record& record) const {
  return models::load_masks(record);
}

std::optional<data::Sample> ConversationProcessor::make_mask_prompt(const io::Record& record,
                                                                    const data::Sample& prompt,
                                                                    const std::vector<int64_t>& answer) const {
  return masks_ ? masks_->make_prompt(record, prompt, answer) : std::nullopt;
}

}  // namespace vlmtrain::models
