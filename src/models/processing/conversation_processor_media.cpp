#include <ATen/ops/empty.h>

#include <algorithm>

#include "models/processing/chat_template.h"
#include "models/processing/conversation_processor.h"
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

namespace {

/// Returns the error with the path of its file as prefix, unless the message contains the path.
UserError add_path_prefix(const io::MediaRef& medium, const UserError& error) {
  const std::string message = error.what();
  const auto is_mentioned = [&](const io::MediaRef& candidate) {
    return message.find(candidate.path) != std::string::npos;
  };
  const bool is_file_mentioned = is_mentioned(medium) || std::ranges::any_of(medium.frames, is_mentioned);
  return data_error("{}{}", is_file_mentioned ? "" : medium.path + ": ", message);
}

data::SampleError make_changed_image_error(const io::Record& record) {
  return {"unreadable image",
          fmt::format("sample {}: an image changed its size while it was read; do not change data during a run",
                      record.id)};
}

}  // namespace

std::vector<image::ImageSize> ConversationProcessor::collect_image_sizes(const std::vector<Medium>& media) {
  std::vector<image::ImageSize> sizes;
  for (const Medium& medium : media) {
    if (medium.kind == data::MediaKind::kImage) sizes.push_back(medium.size);
  }
  return sizes;
}

int64_t check_decode_bytes(image::ImageSize size, data::MediaKind kind, int64_t available_bytes) {
  const bool is_video = kind == data::MediaKind::kVideo;
  const int64_t bytes =
      is_video ? image::estimate_frame_decoding_memory(size) : image::estimate_image_decoding_memory(size);
  if (bytes <= compute_max_sample_bytes(available_bytes)) return bytes;
  throw data_error(
      "{}{} x {} pixels take {} during decoding, beyond the limit of a quarter of the available {}; shrink the {}",
      is_video ? "frames of " : "", size.width, size.height, format_bytes(bytes), format_bytes(available_bytes),
      is_video ? "video" : "image");
}

void ConversationProcessor::read_media_headers(const io::Record& record, std::vector<Medium>& media) const {
  for (Medium& medium : media) {
    rethrow_medium_errors(record, medium.kind, [&] {
      try {
        if (medium.file->is_volume) {
          read_volume_header(medium);
          return;
        }
        if (medium.kind == data::MediaKind::kVideo) {
          medium.size = medium.video.emplace(*medium.file).info().size;
          check_video(medium.video->info());
        } else {
          medium.size = image::read_image_size(*medium.file);
        }
        check_size(medium.size);
        medium.decode_bytes = check_decode_bytes(medium.size, medium.kind, get_host_limit_bytes());
      } catch (const UserError& error) {
        throw add_path_prefix(*medium.file, error);
      }
    });
  }
}

MediaLayout ConversationProcessor::lay_out_medium(const Medium& medium, const PixelLimits& limits) const {
  try {
    const bool is_video = medium.kind == data::MediaKind::kVideo;
    const bool is_volume = medium.kind == data::MediaKind::kVolume;
    MediaLayout image = is_volume  ? lay_out_volume(*medium.volume)
                        : is_video ? lay_out_video(medium.video->info(), limits.frame)
                                   : lay_out_image(medium.size, limits.image);
    image.kind = medium.kind;
    if (is_volume) image.modality = find_modality_id(medium.file->modality);
    image.decode_bytes = medium.decode_bytes;
    return image;
  } catch (const UserError& error) {
    throw add_path_prefix(*medium.file, error);
  }
}

ConversationProcessor::MediumPixels ConversationProcessor::preprocess_medium(Medium& medium, const PixelLimits& limits,
                                                                             const image::Augmentation& augmentation,
                                                                             bool needs_mask_image,
                                                                             CachedVolume& cached_volume,
                                                                             std::vector<io::Notice>& notices) const {
  if (medium.kind == data::MediaKind::kVolume) {
    at::Tensor volumes = preprocess_volume(*medium.file);
    for (int64_t i = 0; i < volumes.size(0); ++i) {
      add_notice(check_scan_values(volumes[i].contiguous(), medium.file->path), notices);
    }
    return {.rows = std::move(volumes), .mask_image = {}};
  }
  if (medium.kind != data::MediaKind::kVideo) {
    const at::Tensor stored =
        medium.slice ? read_slice(medium, cached_volume, notices) : image::decode_image(*medium.file);
    if (!medium.slice) add_notice(check_image_pixels(stored, medium.file->path), notices);
    const at::Tensor augmented_image = image::augment_image(stored, augmentation);
    return {.rows = preprocess_image(augmented_image, limits.image),
            .mask_image = needs_mask_image ? make_mask_image(augmented_image, mask_input_->side) : at::Tensor()};
  }
  at::Tensor rows = preprocess_video(*medium.video, limits.frame);
  medium.video.reset();
  return {.rows = std::move(rows), .mask_image = {}};
}

int64_t ConversationProcessor::count_tokens(image::ImageSize /*size*/, std::optional<int64_t> /*max_pixels*/) const {
  throw InternalError("tokens of a smaller image in a family that does not shrink images");
}

int64_t ConversationProcessor::count_video_tokens(const image::VideoInfo& /*info*/,
                                                  std::optional<int64_t> /*max_pixels*/) const {
  throw InternalError("video tokens in a family without videos");
}

MediaLayout ConversationProcessor::lay_out_video(const image::VideoInfo& /*info*/,
                                                 std::optional<int64_t> /*max_pixels*/) const {
  throw InternalError("a video layout in a family without videos");
}

at::Tensor ConversationProcessor::preprocess_video(image::VideoFile& /*video*/,
                                                   std::optional<int64_t> /*max_pixels*/) const {
  throw InternalError("video pixels in a family without videos");
}

std::vector<int64_t> ConversationProcessor::make_position_ids(const EncodedChat& /*chat*/,
                                                              std::span<const MediaLayout> /*images*/) const {
  return {};
}

data::Sample ConversationProcessor::add_pixels(data::Sample sample, const io::Record& record,
                                               std::vector<Medium>& media, const PixelLimits& limits,
                                               const image::Augmentation& augmentation) const {
  if (!sample.pixel_values.defined()) return sample;
  data::SegmentationMasks& masks = sample.masks;
  const auto masked_image_indices = masks.empty() ? std::vector<int64_t>{} : find_masked_image_indices(record);
  at::Tensor pixels = at::empty(sample.pixel_values.sizes(), sample.pixel_values.scalar_type());
  if (!masks.empty()) masks.pixels = at::empty(masks.pixels.sizes(), at::kByte);
  int64_t num_filled_rows = 0, image_index = 0;
  CachedVolume cached_volume;
  std::vector<io::Notice> notices;  // about pixels, so headers do not have them
  for (Medium& medium : media) {
    const auto masked_image_it =
        std::ranges::find(masked_image_indices, medium.kind == data::MediaKind::kImage ? image_index++ : -1);
    const bool needs_mask_image = masked_image_it != masked_image_indices.end();
    const auto [rows, mask_pixels] = rethrow_medium_errors(record, medium.kind, [&] {
      return preprocess_medium(medium, limits, augmentation, needs_mask_image, cached_volume, notices);
    });
    if (rows.sizes().slice(1) != pixels.sizes().slice(1) || rows.size(0) > pixels.size(0) - num_filled_rows) {
      throw make_changed_image_error(record);
    }
    pixels.narrow(0, num_filled_rows, rows.size(0)).copy_(rows);
    if (needs_mask_image) masks.pixels.select(0, masked_image_it - masked_image_indices.begin()).copy_(mask_pixels);
    num_filled_rows += rows.size(0);
  }
  if (num_filled_rows != pixels.size(0)) throw make_changed_image_error(record);
  sample.pixel_values = std::move(pixels);
  if (!masks.empty() && masks.targets.defined()) {
    masks.targets = load_mask_targets(record, collect_image_sizes(media), augmentation, mask_input_->side, notices);
  }
  data::report_media_notices(record.id, notices);
  for (io::Notice& notice : notices) add_notice(std::move(notice), sample.notices);
  return sample;
}

void ConversationProcessor::add_frame_notices(const std::vector<Medium>& media, const SampleLayout& layout,
                                              data::Sample& sample) {
  for (size_t i = 0; i < media.size(); ++i) {
    const auto& video = media[i].video;
    const bool has_preselected_frames = video && (video->info().is_frame_list || video->info().is_frame_folder);
    if (!has_preselected_frames || layout.media_layouts[i].frames >= video->info().num_frames) continue;
    add_notice(io::Notice{.kind = "a list or folder of frames, not all of which are used (data.video_max_frames and "
                                  "the checkpoint's limits)",
                          .example = fmt::format("{} of {} frames, the first in {}", layout.media_layouts[i].frames,
                                                 video->info().num_frames, media[i].file->path)},
               sample.notices);
  }
}

std::vector<MediaPreview> ConversationProcessor::preview_media(const io::Record& record,
                                                               const data::Sample& sample) const {
  std::vector<MediaPreview> previews;
  if (!sample.pixel_values.defined()) return previews;
  const text::RenderedChat chat = render(record, /*as_prompt=*/false);
  std::vector<Medium> media = collect_media(record, chat);
  read_media_headers(record, media);
  const SampleLayout layout = find_fitting_layout(record, chat, media);
  int64_t first = 0;
  for (size_t i = 0; i < media.size(); ++i) {
    const MediaLayout& media_layout = layout.media_layouts[i];
    if (first + media_layout.pixel_rows > sample.pixel_values.size(0)) throw make_changed_image_error(record);
    const bool is_video = media[i].kind == data::MediaKind::kVideo;
    const at::Tensor rows = sample.pixel_values.narrow(0, first, media_layout.pixel_rows);
    auto media_previews =
        media_layout.kind == data::MediaKind::kVolume
            ? preview_volumes(rows)
            : preview_images(rows, media_layout, media[i].size, is_video ? layout.limits.frame : layout.limits.image);
    for (MediaPreview& preview : media_previews) {
      preview.media_index = static_cast<int64_t>(i);
      if (preview.is_volume())
        preview.name = io::describe_volume(record, static_cast<size_t>(media[i].file - &record.images[0]));
      previews.push_back(std::move(preview));
    }
    first += media_layout.pixel_rows;
  }
  return previews;
}

std::vector<MediaPreview> ConversationProcessor::preview_images(const at::Tensor& rows, const MediaLayout& /*medium*/,
                                                                image::ImageSize /*size*/,
                                                                std::optional<int64_t> /*max_pixels*/) const {
  std::vector<MediaPreview> previews;
  previews.reserve(static_cast<size_t>(rows.size(0)));
  for (int64_t row = 0; row < rows.size(0); ++row) {
    previews.push_back({.pixels = rows.select(0, row), .tile_height = rows.size(2), .tile_width = rows.size(3)});
  }
  return previews;
}

void ConversationProcessor::check_supported_media(const io::Record& record) const {
  if (!record.videos.empty() && !supports_videos()) {
    throw data::SampleError("unsupported video",
                            fmt::format("sample {} has a video ({}), which this model family does not support; drop "
                                        "the sample or use a model of another family",
                                        record.id, make_excerpt(record.videos.front().path)));
  }
  check_volumes(record);
}

void ConversationProcessor::check_num_images(const io::Record& record,
                                             const std::vector<int64_t>& images_per_placeholder) const {
  const auto limit = settings_.max_images_per_sample;
  const int64_t num_images = std::reduce(images_per_placeholder.begin(), images_per_placeholder.end());
  if (!limit || num_images <= *limit) return;
  throw data::SampleError("too many images", fmt::format("sample {} has {}, more than data.max_images_per_sample={}",
                                                         record.id, pluralize(num_images, "image"), *limit));
}

std::vector<ConversationProcessor::Medium> ConversationProcessor::collect_media(const io::Record& record,
                                                                                const text::RenderedChat& chat) const {
  check_supported_media(record);
  std::vector<Medium> media;
  media.reserve(chat.media.size());
  const auto slices = count_images_per_placeholder(record);
  check_num_images(record, slices);
  size_t image_index = 0, video_index = 0, slice = 0;
  for (const text::MediaSpan& placeholder : chat.media) {
    const auto& files = placeholder.is_video ? record.videos : record.images;
    size_t& next_file_index = placeholder.is_video ? video_index : image_index;
    if (next_file_index == files.size()) break;  // a placeholder without a file; the token check reports it
    Medium& medium = media.emplace_back(Medium{.file = &files[next_file_index], .kind = data::MediaKind::kImage});
    if (placeholder.is_video) {
      medium.kind = data::MediaKind::kVideo;
    } else if (files[next_file_index].is_volume && uses_volume_slices()) {
      medium.slice = slice++;
      if (std::ssize(slices) > static_cast<int64_t>(next_file_index) &&
          static_cast<int64_t>(slice) < slices[next_file_index])
        continue;
      slice = 0;
    } else if (files[next_file_index].is_volume) {
      medium.kind = data::MediaKind::kVolume;
    }
    ++next_file_index;
  }
  if (image_index < record.images.size() || video_index < record.videos.size()) {
    throw data::SampleError(
        "refused by the chat template",
        fmt::format("sample {}: {} writes {} of its {} images and videos; put them into user turns, or set another "
                    "data.chat_template",
                    record.id, chat_template_.source().name, media.size(),
                    record.images.size() + record.videos.size()));
  }
  return media;
}

}  // namespace vlmtrain::models
