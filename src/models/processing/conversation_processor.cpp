#include "models/processing/conversation_processor.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "models/processing/expand_images.h"
#include "models/processing/pixel_notices.h"
#include "models/processing/reading_media.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/data/media_notices.h"
#include "vlmtrain/io/scan_name.h"
#include "vlmtrain/memory/host.h"
#include "vlmtrain/text/labels.h"
#include "vlmtrain/text/read_tokenizer.h"

namespace vlmtrain::models {

namespace {

/// The error with the file that it is about.
UserError named(const io::Medium& medium, const UserError& error) {
  const std::string message = error.what();
  const auto is_named = [&](const io::Medium& one) { return message.find(one.path) != std::string::npos; };
  const bool says_which = is_named(medium) || std::ranges::any_of(medium.frames, is_named);
  return data_error("{}{}", says_which ? "" : medium.path + ": ", message);
}

data::SampleError changed_picture(const io::Record& record) {
  return {"unreadable image",
          fmt::format("sample {}: a picture changed its size while it was read; leave the data alone during a run",
                      record.id)};
}

}  // namespace

ConversationProcessor::ConversationProcessor(text::Tokenizer tokenizer, text::ChatTemplate chat_template,
                                             ProcessorSettings settings, TowerInput input,
                                             std::optional<MaskInput> masks)
    : tokenizer_(std::move(tokenizer)),
      settings_(std::move(settings)),
      template_(std::move(chat_template)),
      input_(input),
      mask_input_(std::move(masks)),
      end_of_turn_id_(id_of(tokenizer_, template_.end_of_turn())) {}

std::vector<image::ImageSize> ConversationProcessor::picture_sizes(const std::vector<Medium>& media) {
  std::vector<image::ImageSize> sizes;
  for (const Medium& medium : media) {
    if (medium.kind == data::MediumKind::kPicture) sizes.push_back(medium.size);
  }
  return sizes;
}

data::Sample ConversationProcessor::process(const io::Record& record, int64_t index) const {
  return make(record, index, render(record, /*as_prompt=*/false));
}

data::Sample ConversationProcessor::process_augmented(const io::Record& record, int64_t index, uint64_t seed) const {
  return make(record, index, render(record, /*as_prompt=*/false), image::draw_augmentation(settings_.augment, seed));
}

data::Sample ConversationProcessor::process_prompt(const io::Record& record, int64_t index) const {
  return make(record, index, render(record, /*as_prompt=*/true));
}

data::Sample ConversationProcessor::outline_prompt(const io::Record& record, int64_t index) const {
  return outline(record, index, render(record, /*as_prompt=*/true));
}

text::RenderedChat ConversationProcessor::render(const io::Record& record, bool as_prompt) const {
  const std::vector<text::Turn> all = turns_of(record);
  std::span<const text::Turn> turns = all;
  try {
    if (!as_prompt) return template_.render(turns, /*add_generation_prompt=*/false);
    if (!turns.empty() && turns.back().role == text::Role::kAssistant) turns = turns.first(turns.size() - 1);
    text::RenderedChat chat = template_.render(turns, /*add_generation_prompt=*/true);
    chat.answers.clear();
    chat.notices.clear();
    return chat;
  } catch (const UserError& error) {
    throw data::SampleError("refused by the chat template", fmt::format("sample {}: {}", record.id, error.what()));
  }
}

data::Sample ConversationProcessor::outline(const io::Record& record, int64_t index) const {
  return outline(record, index, render(record, /*as_prompt=*/false));
}

data::Sample ConversationProcessor::make(const io::Record& record, int64_t index, const text::RenderedChat& chat,
                                         const image::Augmentation& augmentation) const {
  std::vector<Medium> media = media_of(record, chat);
  measure(record, media);
  const MediaLayout layout = fitting(record, chat, media);
  data::Sample sample = with_masks(sample_of(record, index, layout), record, media);
  sample.notices = chat.notices;
  notice_frames(media, layout, sample);
  return with_pixels(std::move(sample), record, media, layout.limits, augmentation);
}

data::Sample ConversationProcessor::outline(const io::Record& record, int64_t index,
                                            const text::RenderedChat& chat) const {
  std::vector<Medium> media = media_of(record, chat);
  measure(record, media);
  const MediaLayout layout = fitting(record, chat, media);
  data::Sample sample = with_masks(sample_of(record, index, layout), record, media);
  sample.notices = chat.notices;
  notice_frames(media, layout, sample);
  return sample;
}

ConversationProcessor::MediaLayout ConversationProcessor::lay_out(const io::Record& record,
                                                                  const text::RenderedChat& chat,
                                                                  const std::vector<Medium>& media,
                                                                  const PixelLimits& limits) const {
  MediaLayout layout{.limits = limits, .plans = {}, .chat = {}};
  layout.plans.reserve(media.size());
  for (const Medium& medium : media) {
    layout.plans.push_back(read_medium(record, medium.kind, [&] { return plan_of(medium, limits); }));
  }
  layout.chat = encode(chat, layout.plans);
  return layout;
}

data::Sample ConversationProcessor::sample_of(const io::Record& record, int64_t index,
                                              const MediaLayout& layout) const {
  data::Sample sample;
  int64_t rows = 0, features = 0;
  for (const ImagePlan& image : layout.plans) {
    rows += image.pixel_rows;
    // Beside its rows: a resized picture, or frame, and what resizing takes, both hardly larger than their rows.
    constexpr int64_t kResized = 2;
    const int64_t own_rows = image.pixel_rows * input_.row.bytes();
    const int64_t frames = image.grid ? image.grid->frames : 1;
    sample.making_bytes = std::max(sample.making_bytes, image.making_bytes + own_rows + kResized * own_rows / frames);
    features += image.image_tokens.value_or(image.pixel_rows * input_.image_tokens);
    if (image.grid) sample.grids.push_back(*image.grid);
    if (image.kind == data::MediumKind::kVolume) {
      sample.modalities.insert(sample.modalities.end(), static_cast<size_t>(image.pixel_rows), image.modality);
    }
    sample.count(image.kind, image.frames);
  }
  sample.index = index;
  sample.id = record.id;
  sample.task = record.task;
  sample.is_label = layout.chat.is_label;
  sample.token_ids = layout.chat.token_ids;
  sample.image_token_positions = layout.chat.image_token_positions;
  sample.shrunk = layout.shrunk;
  if (std::ssize(sample.image_token_positions) != features) {
    throw data::SampleError("image tokens in the text",
                            fmt::format("sample {} has {} image tokens in its text for {} image features; take the "
                                        "text {}, or the model's own token for images, out of the conversation",
                                        record.id, sample.image_token_positions.size(), features, text::kImageMark));
  }
  check_memory(sample, rows * input_.row.bytes());
  sample.position_ids = position_ids(layout.chat, layout.plans);
  if (rows > 0) {
    sample.pixel_values = at::empty(input_.row.sizes(rows), at::TensorOptions(input_.row.dtype).device(at::kMeta));
  }
  return sample;
}

void ConversationProcessor::check_memory(const data::Sample& sample, int64_t pixel_bytes) const {
  if (sample.making_bytes + pixel_bytes <= most_for_a_sample(host_bytes())) return;
  throw data::SampleError(
      "too large for the memory",
      fmt::format("sample {}: its pixels take {} and making them {} more, and no more than a quarter of this process's "
                  "{} may go to it; lower data.image_max_pixels or data.video_max_frames",
                  sample.id, format_bytes(pixel_bytes), format_bytes(sample.making_bytes), format_bytes(host_bytes())));
}

int64_t check_decoding(image::ImageSize size, data::MediumKind kind, int64_t host_bytes) {
  const bool is_video = kind == data::MediumKind::kVideo;
  const int64_t bytes = is_video ? image::frame_decoding_bytes(size) : image::decoding_bytes(size);
  if (bytes <= most_for_a_sample(host_bytes)) return bytes;
  throw data_error(
      "{}{} x {} pixels take {} while they are decoded, and no more than a quarter of this process's {} may go to it; "
      "shrink the {}",
      is_video ? "frames of " : "", size.width, size.height, format_bytes(bytes), format_bytes(host_bytes),
      is_video ? "video" : "picture");
}

void ConversationProcessor::measure(const io::Record& record, std::vector<Medium>& media) const {
  for (Medium& medium : media) {
    read_medium(record, medium.kind, [&] {
      try {
        if (medium.file->is_volume) {
          measure_volume(medium);
          return;
        }
        if (medium.kind == data::MediumKind::kVideo) {
          medium.size = medium.video.emplace(*medium.file).info().size;
          check_video(medium.video->info());
        } else {
          medium.size = image::read_image_size(*medium.file);
        }
        check_size(medium.size);
        medium.decoding_bytes = check_decoding(medium.size, medium.kind, host_bytes());
      } catch (const UserError& error) {
        throw named(*medium.file, error);
      }
    });
  }
}

ImagePlan ConversationProcessor::plan_of(const Medium& medium, const PixelLimits& limits) const {
  try {
    const bool is_video = medium.kind == data::MediumKind::kVideo;
    const bool is_volume = medium.kind == data::MediumKind::kVolume;
    ImagePlan image = is_volume  ? plan_volume(*medium.volume)
                      : is_video ? plan_video(medium.video->info(), limits.frame)
                                 : plan(medium.size, limits.picture);
    image.kind = medium.kind;
    if (is_volume) image.modality = modality_number(medium.file->modality);
    image.making_bytes = medium.decoding_bytes;
    return image;
  } catch (const UserError& error) {
    throw named(*medium.file, error);
  }
}

ConversationProcessor::MediumPixels ConversationProcessor::pixels_of(Medium& medium, const PixelLimits& limits,
                                                                     const image::Augmentation& augmentation,
                                                                     bool with_square, SlicedVolume& newest,
                                                                     std::vector<io::Notice>& notices) const {
  if (medium.kind == data::MediumKind::kVolume) {
    at::Tensor volumes = pixels_of_volume(*medium.file);
    for (int64_t i = 0; i < volumes.size(0); ++i) {
      add_notice(notice_of_scan(volumes[i].contiguous(), medium.file->path), notices);
    }
    return {.rows = std::move(volumes), .square = {}};
  }
  if (medium.kind != data::MediumKind::kVideo) {
    const at::Tensor stored = medium.slice ? slice_of(medium, newest, notices) : image::decode_image(*medium.file);
    if (!medium.slice) add_notice(notice_of_image(stored, medium.file->path), notices);
    const at::Tensor picture = image::augment_picture(stored, augmentation);
    return {.rows = pixels_of(picture, limits.picture),
            .square = with_square ? square_picture(picture, mask_input_->side) : at::Tensor()};
  }
  at::Tensor rows = pixels_of_video(*medium.video, limits.frame);
  medium.video.reset();
  return {.rows = std::move(rows), .square = {}};
}

int64_t ConversationProcessor::count_tokens(image::ImageSize /*size*/, std::optional<int64_t> /*max_pixels*/) const {
  throw InternalError("tokens of a smaller picture in a family that makes none smaller");
}

int64_t ConversationProcessor::count_video_tokens(const image::VideoInfo& /*info*/,
                                                  std::optional<int64_t> /*max_pixels*/) const {
  throw InternalError("tokens of a video in a family that takes none");
}

ImagePlan ConversationProcessor::plan_video(const image::VideoInfo& /*info*/,
                                            std::optional<int64_t> /*max_pixels*/) const {
  throw InternalError("a plan of a video in a family that takes none");
}

at::Tensor ConversationProcessor::pixels_of_video(image::VideoFile& /*video*/,
                                                  std::optional<int64_t> /*max_pixels*/) const {
  throw InternalError("pixels of a video in a family that takes none");
}

std::vector<int64_t> ConversationProcessor::position_ids(const EncodedChat& /*chat*/,
                                                         std::span<const ImagePlan> /*images*/) const {
  return {};
}

data::Sample ConversationProcessor::with_pixels(data::Sample sample, const io::Record& record,
                                                std::vector<Medium>& media, const PixelLimits& limits,
                                                const image::Augmentation& augmentation) const {
  if (!sample.pixel_values.defined()) return sample;
  data::Masks& masks = sample.masks;
  const auto drawn_in = masks.empty() ? std::vector<int64_t>{} : pictures_with_masks(record);
  at::Tensor pixels = at::empty(sample.pixel_values.sizes(), sample.pixel_values.scalar_type());
  if (!masks.empty()) masks.pixels = at::empty(masks.pixels.sizes(), at::kByte);
  int64_t filled = 0, picture = 0;
  SlicedVolume newest;
  std::vector<io::Notice> notices;  // that headers do not show
  for (Medium& medium : media) {
    const auto square = std::ranges::find(drawn_in, medium.kind == data::MediumKind::kPicture ? picture++ : -1);
    const bool with_square = square != drawn_in.end();
    const auto [own, drawn] = read_medium(
        record, medium.kind, [&] { return pixels_of(medium, limits, augmentation, with_square, newest, notices); });
    if (own.sizes().slice(1) != pixels.sizes().slice(1) || own.size(0) > pixels.size(0) - filled) {
      throw changed_picture(record);
    }
    pixels.narrow(0, filled, own.size(0)).copy_(own);
    if (with_square) masks.pixels.select(0, square - drawn_in.begin()).copy_(drawn);
    filled += own.size(0);
  }
  if (filled != pixels.size(0)) throw changed_picture(record);
  sample.pixel_values = std::move(pixels);
  if (!masks.empty() && masks.targets.defined()) {
    masks.targets = mask_targets(record, picture_sizes(media), augmentation, mask_input_->side, notices);
  }
  data::report_media(record.id, notices);
  for (io::Notice& notice : notices) add_notice(std::move(notice), sample.notices);
  return sample;
}

void ConversationProcessor::notice_frames(const std::vector<Medium>& media, const MediaLayout& layout,
                                          data::Sample& sample) {
  for (size_t i = 0; i < media.size(); ++i) {
    const auto& video = media[i].video;
    const bool is_chosen = video && (video->info().is_list || video->info().is_folder);
    if (!is_chosen || layout.plans[i].frames >= video->info().frames) continue;
    add_notice(
        io::Notice{.kind = "of a list or folder of frames, not all are looked at (data.video_max_frames, and the "
                           "checkpoint's own limits)",
                   .example = fmt::format("{} of {} frames, the first in {}", layout.plans[i].frames,
                                          video->info().frames, media[i].file->path)},
        sample.notices);
  }
}

std::vector<SeenPicture> ConversationProcessor::seen(const io::Record& record, const data::Sample& sample) const {
  std::vector<SeenPicture> pictures;
  if (!sample.pixel_values.defined()) return pictures;
  const text::RenderedChat chat = render(record, /*as_prompt=*/false);
  std::vector<Medium> media = media_of(record, chat);
  measure(record, media);
  const MediaLayout layout = fitting(record, chat, media);
  int64_t first = 0;
  for (size_t i = 0; i < media.size(); ++i) {
    const ImagePlan& plan = layout.plans[i];
    if (first + plan.pixel_rows > sample.pixel_values.size(0)) throw changed_picture(record);
    const bool is_video = media[i].kind == data::MediumKind::kVideo;
    const at::Tensor rows = sample.pixel_values.narrow(0, first, plan.pixel_rows);
    auto own = plan.kind == data::MediumKind::kVolume
                   ? volumes_in(rows)
                   : pictures_in(rows, plan, media[i].size, is_video ? layout.limits.frame : layout.limits.picture);
    for (SeenPicture& picture : own) {
      picture.medium = static_cast<int64_t>(i);
      if (picture.is_volume())
        picture.name = io::scan_name(record, static_cast<size_t>(media[i].file - &record.images[0]));
      pictures.push_back(std::move(picture));
    }
    first += plan.pixel_rows;
  }
  return pictures;
}

std::vector<SeenPicture> ConversationProcessor::pictures_in(const at::Tensor& rows, const ImagePlan& /*medium*/,
                                                            image::ImageSize /*size*/,
                                                            std::optional<int64_t> /*max_pixels*/) const {
  std::vector<SeenPicture> pictures;
  pictures.reserve(static_cast<size_t>(rows.size(0)));
  for (int64_t row = 0; row < rows.size(0); ++row) {
    pictures.push_back({.pixels = rows.select(0, row), .tile_height = rows.size(2), .tile_width = rows.size(3)});
  }
  return pictures;
}

void ConversationProcessor::check_media(const io::Record& record) const {
  if (!record.videos.empty() && !takes_videos()) {
    throw data::SampleError("video for a family without",
                            fmt::format("sample {} has a video ({}), and this family takes no videos; drop the sample "
                                        "or take a model of another family",
                                        record.id, excerpt(record.videos.front().path)));
  }
  check_volumes(record);
}

void ConversationProcessor::check_images(const io::Record& record, const std::vector<int64_t>& pictures) const {
  const auto limit = settings_.max_images_per_sample;
  const int64_t images = std::reduce(pictures.begin(), pictures.end());
  if (!limit || images <= *limit) return;
  throw data::SampleError(
      "too many images",
      fmt::format("sample {} has {} images, more than data.max_images_per_sample={}", record.id, images, *limit));
}

std::vector<ConversationProcessor::Medium> ConversationProcessor::media_of(const io::Record& record,
                                                                           const text::RenderedChat& chat) const {
  check_media(record);
  std::vector<Medium> media;
  media.reserve(chat.media.size());
  const auto slices = pictures_at_marks(record);
  check_images(record, slices);
  size_t images = 0, videos = 0, slice = 0;
  for (const text::MediumPlace& place : chat.media) {
    const auto& files = place.is_video ? record.videos : record.images;
    size_t& next = place.is_video ? videos : images;
    if (next == files.size()) break;  // a mark of no file, which the tokens will show
    Medium& medium = media.emplace_back(Medium{.file = &files[next], .kind = data::MediumKind::kPicture});
    if (place.is_video) {
      medium.kind = data::MediumKind::kVideo;
    } else if (files[next].is_volume && takes_slices()) {
      medium.slice = slice++;
      if (std::ssize(slices) > static_cast<int64_t>(next) && static_cast<int64_t>(slice) < slices[next]) continue;
      slice = 0;
    } else if (files[next].is_volume) {
      medium.kind = data::MediumKind::kVolume;
    }
    ++next;
  }
  if (images < record.images.size() || videos < record.videos.size()) {
    throw data::SampleError(
        "refused by the chat template",
        fmt::format("sample {}: {} writes {} of its {} images and videos; put them into user turns, or name another "
                    "template under data.chat_template",
                    record.id, template_.source().name, media.size(), record.images.size() + record.videos.size()));
  }
  return media;
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
                            std::span<const ImagePlan> images, int64_t image_token_id, bool add_special_tokens,
                            std::optional<int64_t> video_token_id) {
  std::vector<std::string> expansions;
  for (const auto& image : images) expansions.push_back(image.text);
  const auto expanded = expand_images(chat, expansions);
  auto encoding = tokenizer.encode(expanded.text, add_special_tokens);
  EncodedChat encoded;
  encoded.is_label = text::answer_tokens(encoding, expanded.text, expanded.answers);
  encoded.token_ids = std::move(encoding.ids);
  for (int64_t place = 0; place < std::ssize(encoded.token_ids); ++place) {
    const int64_t token = encoded.token_ids[static_cast<size_t>(place)];
    if (token == image_token_id || token == video_token_id) encoded.image_token_positions.push_back(place);
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
  return text::read_tokenizer(folder);
}

}  // namespace vlmtrain::models
