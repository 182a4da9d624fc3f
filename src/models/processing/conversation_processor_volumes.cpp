#include <algorithm>

#include "models/processing/conversation_processor.h"
#include "models/processing/media_checks.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/image/volume_slices.h"

// Conversion of volumes: to rows for a family whose tower takes volumes, to slices for image
// towers.

namespace vlmtrain::models {

namespace {

/// Returns `text` with each image placeholder repeated as often as the next entry of `counts`.
/// Advances `next_count_index`, the index of that entry.
std::string repeat_placeholders(std::string_view text, std::span<const int64_t> counts, size_t& next_count_index) {
  std::string result;
  for (size_t position = text.find(text::kImagePlaceholder);
       position != std::string_view::npos && next_count_index < counts.size();
       position = text.find(text::kImagePlaceholder)) {
    result += text.substr(0, position);
    for (int64_t i = 0; i < counts[next_count_index]; ++i) result += text::kImagePlaceholder;
    text.remove_prefix(position + text::kImagePlaceholder.size());
    ++next_count_index;
  }
  return result += text;
}

}  // namespace

void ConversationProcessor::check_volumes(const io::Record& record) const {
  const auto volumes = std::ranges::count(record.images, true, &io::MediaRef::is_volume);
  if (volumes < std::ssize(record.images) && !supports_images()) {
    throw data::SampleError("unsupported image",
                            fmt::format("sample {} has an image, and this model family supports only volumes: NIfTI, "
                                        ".nii or .nii.gz; drop the sample or use a model of another family",
                                        record.id));
  }
  if (volumes == 0) return;
  if (!supports_volumes() && !uses_volume_slices()) {
    throw data::SampleError(
        "unsupported volume",
        fmt::format("sample {} has a volume ({}), which this model family does not support; set data.volume.as=slices "
                    "to convert it to images, or use a model of a family that supports volumes",
                    record.id, make_excerpt(std::ranges::find(record.images, true, &io::MediaRef::is_volume)->path)));
  }
  if (max_volumes() && volumes > *max_volumes()) {
    throw data::SampleError("too many volumes",
                            fmt::format("sample {} has {}, and this model supports at most {} (max_volumes in its "
                                        "config.json); drop the sample, or some of its volumes",
                                        record.id, pluralize(volumes, "volume"), *max_volumes()));
  }
  if (uses_volume_slices() && !record.masks.empty() && mask_input_) {
    throw data::SampleError("masks of a volume", fmt::format("sample {} has masks and a volume that is read as slices, "
                                                             "but masks are not assigned to slices; drop the sample",
                                                             record.id));
  }
}

std::vector<int64_t> ConversationProcessor::count_images_per_placeholder(const io::Record& record) const {
  std::vector<int64_t> counts;
  counts.reserve(record.images.size());
  for (const io::MediaRef& medium : record.images) {
    counts.push_back(1);
    if (!medium.is_volume || !uses_volume_slices()) continue;
    counts.back() = rethrow_medium_errors(record, data::MediaKind::kVolume, [&] {
      return image::count_slices(image::read_volume_info(medium), settings_.volume.make_slice_settings());
    });
  }
  return counts;
}

std::vector<text::Turn> ConversationProcessor::make_turns(const io::Record& record) const {
  if (!uses_volume_slices() || std::ranges::none_of(record.images, &io::MediaRef::is_volume)) return record.turns;
  check_volumes(record);
  const auto counts = count_images_per_placeholder(record);
  std::vector<text::Turn> turns = record.turns;
  size_t next_count_index = 0;
  for (text::Turn& turn : turns) turn.text = repeat_placeholders(turn.text, counts, next_count_index);
  return turns;
}

void ConversationProcessor::read_volume_header(Medium& medium) const {
  medium.volume = image::read_volume_info(*medium.file);
  if (medium.slice) {
    medium.size = image::compute_slice_size(*medium.volume, settings_.volume.make_slice_settings());
    check_size(medium.size);
    medium.decode_bytes = image::estimate_slice_reading_memory(*medium.volume, settings_.volume.make_slice_settings());
  } else {
    if (medium.volume->num_frames > 1 && settings_.volume.time_series_mode == image::TimeSeriesMode::kRejected) {
      throw data_error(
          "a series of {} volumes (functional or diffusion MRI), but one is expected; set data.volume.series=mean, or "
          "data.volume.series=frames to use several, or save the volume you need as a separate file",
          medium.volume->num_frames);
    }
    medium.decode_bytes = lay_out_volume(*medium.volume).decode_bytes;
  }
  if (medium.decode_bytes <= compute_max_sample_bytes(get_host_limit_bytes())) return;
  throw data_error(
      "reading a volume of {} x {} x {} voxels takes {}, beyond the limit of a quarter of the available {}; resample "
      "the file",
      medium.volume->size[0], medium.volume->size[1], medium.volume->size[2], format_bytes(medium.decode_bytes),
      format_bytes(get_host_limit_bytes()));
}

MediaLayout ConversationProcessor::lay_out_volume(const image::VolumeInfo& /*info*/) const {
  throw InternalError("a volume layout in a family without volumes");
}

at::Tensor ConversationProcessor::preprocess_volume(const io::MediaRef& /*file*/) const {
  throw InternalError("volume pixels in a family without volumes");
}

at::Tensor ConversationProcessor::read_slice(const Medium& medium, CachedVolume& cached_volume,
                                             std::vector<io::Notice>& notices) const {
  if (cached_volume.file != medium.file) {
    cached_volume = {.file = medium.file,
                     .slices = image::read_slices(*medium.file, settings_.volume.make_slice_settings())};
    // Slices outside the body are black, so only a scan with a single color in all slices is
    // reported.
    add_notice(check_volume_slices(cached_volume.slices, medium.file->path), notices);
  }
  if (*medium.slice >= cached_volume.slices.size())
    throw data_error("has fewer slices than when its header was read; do not change data during a run");
  return cached_volume.slices[*medium.slice];
}

std::vector<MediaPreview> ConversationProcessor::preview_volumes(const at::Tensor& rows) {
  std::vector<MediaPreview> previews;
  previews.reserve(static_cast<size_t>(rows.size(0)));
  for (int64_t row = 0; row < rows.size(0); ++row) {
    const at::Tensor slices = image::render_orthogonal_slices(rows.select(0, row));
    previews.push_back({.pixels = slices,
                        .frame_index = row,
                        .tile_height = slices.size(1),
                        .tile_width = slices.size(2),
                        .volume_size = {rows.size(2), rows.size(3), rows.size(4)}});
  }
  return previews;
}

}  // namespace vlmtrain::models
