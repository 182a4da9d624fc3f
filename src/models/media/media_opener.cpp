#include "models/media/media_opener.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/image/video.h"
#include "vlmtrain/image/volume.h"

namespace vlmtrain::models {

namespace {

/// Repeats each image placeholder of `turn` as often as the next entry of `counts`. Advances
/// `next_count_index`, the index of that entry.
void repeat_placeholders(std::span<const int64_t> counts, size_t& next_count_index, text::Turn& turn) {
  std::string result;
  std::vector<size_t> literal_offsets;
  size_t copied_end = 0;
  auto literal = turn.literal_placeholder_offsets.begin();
  const auto copy_text = [&](size_t end) {
    for (; literal != turn.literal_placeholder_offsets.end() && *literal < end; ++literal)
      literal_offsets.push_back(result.size() + *literal - copied_end);
    result.append(turn.text, copied_end, end - copied_end);
    copied_end = end;
  };
  for (const io::MediaPlaceholder& placeholder : io::find_placeholders(turn)) {
    if (placeholder.is_video || next_count_index == counts.size()) continue;
    copy_text(placeholder.begin);
    for (int64_t i = 0; i < counts[next_count_index]; ++i) result += text::kImagePlaceholder;
    copied_end += text::kImagePlaceholder.size();
    ++next_count_index;
  }
  copy_text(turn.text.size());
  turn.text = std::move(result);
  turn.literal_placeholder_offsets = std::move(literal_offsets);
}

}  // namespace

void MediaOpener::check_supported_media(const io::Record& record) const {
  if (!readers_.images && !readers_.videos && !readers_.volumes) return reject_media(record);
  if (!record.videos.empty() && !readers_.videos) {
    throw data::SampleError("unsupported video",
                            fmt::format("sample {} has a video ({}), which this model family does not support; drop "
                                        "the sample or use a model of another family",
                                        record.id, make_excerpt(record.videos.front().path)));
  }
  check_volumes(record);
}

void MediaOpener::reject_media(const io::Record& record) {
  const auto reject = [&](const char* noun, const io::MediaRef& medium) {
    throw data::SampleError(fmt::format("unsupported {}", noun),
                            fmt::format("sample {} has media ({} {}), but this model has no vision tower; drop the "
                                        "sample or use a vision-language model",
                                        record.id, noun, make_excerpt(medium.path)));
  };
  if (!record.images.empty()) reject(record.images.front().is_volume ? "volume" : "image", record.images.front());
  if (!record.videos.empty()) reject("video", record.videos.front());
}

void MediaOpener::check_volumes(const io::Record& record) const {
  const auto volumes = std::ranges::count(record.images, true, &io::MediaRef::is_volume);
  if (volumes < std::ssize(record.images) && !readers_.images) {
    throw data::SampleError("unsupported image",
                            fmt::format("sample {} has an image, and this model family supports only volumes: NIfTI, "
                                        ".nii or .nii.gz; drop the sample or use a model of another family",
                                        record.id));
  }
  if (volumes == 0) return;
  if (!readers_.volumes && !uses_volume_slices()) {
    throw data::SampleError(
        "unsupported volume",
        fmt::format("sample {} has a volume ({}), which this model family does not support; set {}=slices to convert "
                    "it to images, or use a model of a family that supports volumes",
                    record.id, make_excerpt(std::ranges::find(record.images, true, &io::MediaRef::is_volume)->path),
                    keys::data::kVolumeAs));
  }
  const auto max_volumes = readers_.volumes ? readers_.volumes->max_volumes() : std::nullopt;
  if (max_volumes && volumes > *max_volumes) {
    throw data::SampleError("too many volumes",
                            fmt::format("sample {} has {}, and this model supports at most {} (max_volumes in its "
                                        "config.json); drop the sample, or some of its volumes",
                                        record.id, pluralize(volumes, "volume"), *max_volumes));
  }
}

void MediaOpener::check_num_images(const io::Record& record, const std::vector<int64_t>& images_per_placeholder) const {
  const int64_t num_images = std::reduce(images_per_placeholder.begin(), images_per_placeholder.end());
  if (!max_images_ || num_images <= *max_images_) return;
  throw data::SampleError("too many images",
                          fmt::format("sample {} has {}, more than {}={}", record.id, pluralize(num_images, "image"),
                                      keys::data::kMaxImagesPerSample, *max_images_));
}

std::vector<int64_t> MediaOpener::count_images_per_placeholder(const io::Record& record) const {
  std::vector<int64_t> counts;
  counts.reserve(record.images.size());
  for (const io::MediaRef& file : record.images) {
    counts.push_back(1);
    if (!file.is_volume || !uses_volume_slices()) continue;
    counts.back() = rethrow_medium_errors(record, data::MediaKind::kVolume, [&] {
      return image::count_slices(image::read_volume_info(file), volume_settings_.make_slice_settings());
    });
  }
  return counts;
}

std::vector<text::Turn> MediaOpener::expand_slice_placeholders(const io::Record& record,
                                                               std::vector<text::Turn> turns) const {
  if (!uses_volume_slices() || std::ranges::none_of(record.images, &io::MediaRef::is_volume)) return turns;
  check_volumes(record);
  const auto counts = count_images_per_placeholder(record);
  size_t next_count_index = 0;
  for (text::Turn& turn : turns) repeat_placeholders(counts, next_count_index, turn);
  return turns;
}

std::vector<MediaOpener::MediumSource> MediaOpener::find_sources(const io::Record& record,
                                                                 const text::RenderedChat& chat,
                                                                 std::string_view template_name) const {
  std::vector<MediumSource> sources;
  sources.reserve(chat.media.size());
  const auto slices = count_images_per_placeholder(record);
  check_num_images(record, slices);
  size_t image_index = 0, video_index = 0, slice = 0;
  for (const text::MediaSpan& placeholder : chat.media) {
    const auto& files = placeholder.is_video ? record.videos : record.images;
    size_t& next_file_index = placeholder.is_video ? video_index : image_index;
    if (next_file_index == files.size()) break;  // a placeholder without a file; the token check reports it
    MediumSource& source =
        sources.emplace_back(MediumSource{.file = &files[next_file_index], .kind = data::MediaKind::kImage});
    if (placeholder.is_video) {
      source.kind = data::MediaKind::kVideo;
    } else if (source.file->is_volume && uses_volume_slices()) {
      source.slice = slice++;
      if (static_cast<int64_t>(slice) < slices[next_file_index]) continue;
      slice = 0;
    } else if (source.file->is_volume) {
      source.kind = data::MediaKind::kVolume;
    }
    ++next_file_index;
  }
  if (image_index < record.images.size() || video_index < record.videos.size()) {
    throw data::SampleError(
        "refused by the chat template",
        fmt::format("sample {}: {} writes {} of its {} images and videos; put them into user turns, or set another {}",
                    record.id, template_name, sources.size(), record.images.size() + record.videos.size(),
                    keys::data::kChatTemplate));
  }
  return sources;
}

MediaList MediaOpener::open(const io::Record& record, const text::RenderedChat& chat,
                            std::string_view template_name) const {
  MediaList media;
  std::shared_ptr<SlicedVolume> volume;  // of the last slice
  for (const MediumSource& source : find_sources(record, chat, template_name)) {
    media.push_back(rethrow_medium_errors(record, source.kind, [&]() -> std::unique_ptr<Medium> {
      if (source.kind == data::MediaKind::kVideo) return open_video(*source.file, *readers_.videos);
      if (source.kind == data::MediaKind::kVolume)
        return open_volume(*source.file, *readers_.volumes, volume_settings_);
      if (!source.slice) return open_image(*source.file, *readers_.images);
      if (source.slice == 0) volume = open_sliced_volume(*source.file, volume_settings_, *readers_.images);
      return make_slice_medium(volume, *source.slice, *readers_.images);
    }));
  }
  return media;
}

namespace {

/// 1/16 of 256 values: the range that 12-bit data in 16-bit files has after conversion to 8 bits.
constexpr int kMinPixelValueRange = 16;

}  // namespace

std::optional<io::Notice> check_image_pixels(const at::Tensor& image, const std::string& name) {
  const auto* const values = image.const_data_ptr<uint8_t>();
  const int64_t pixels = image.size(1) * image.size(2);
  uint8_t low = 255, high = 0;
  bool is_one_color = true;
  for (int64_t channel = 0; channel < 3; ++channel) {
    const uint8_t* const plane = values + channel * pixels;
    uint8_t channel_min = 255, channel_max = 0;
    constexpr int64_t kChunkPixels =
        4096;  // pixels between two checks, so that the inner loop is vectorized; not tuned
    for (int64_t begin = 0; begin < pixels; begin += kChunkPixels) {
      for (int64_t i = begin; i < std::min(begin + kChunkPixels, pixels); ++i) {
        channel_min = std::min(channel_min, plane[i]);
        channel_max = std::max(channel_max, plane[i]);
      }
      if (channel_max - channel_min >= kMinPixelValueRange) return std::nullopt;  // usually in the first chunk
    }
    is_one_color = is_one_color && channel_min == channel_max;
    low = std::min(low, channel_min);
    high = std::max(high, channel_max);
  }
  if (is_one_color) return io::Notice{.kind = "an image has a single color", .example = name};
  if (high - low >= kMinPixelValueRange) return std::nullopt;
  return io::Notice{.kind =
                        "an image is nearly black: it uses less than a sixteenth of its value range, such as 12 of 16 "
                        "bits; scale its values to the full range",
                    .example = fmt::format("{} (values {} to {} of 255)", name, low, high)};
}

std::optional<io::Notice> check_scan_values(const at::Tensor& values, const std::string& name) {
  const auto num_bytes = static_cast<size_t>(values.nbytes()), size = static_cast<size_t>(values.element_size());
  const auto* const data = static_cast<const char*>(values.const_data_ptr());
  // The values are constant if the data equals itself shifted by one value.
  if (num_bytes <= size || std::memcmp(data, data + size, num_bytes - size) != 0) return std::nullopt;
  return io::Notice{
      .kind =
          fmt::format("a scan has a single value after its window or normalization; check its units and {}, or drop it",
                      keys::data::kVolumeWindow),
      .example = name};
}

std::optional<io::Notice> check_volume_slices(const std::vector<at::Tensor>& slices, const std::string& name) {
  if (slices.empty()) return std::nullopt;
  const at::Tensor& first = slices.front();
  const auto get_first_value = [](const at::Tensor& slice, int64_t channel) {
    return *slice[channel].const_data_ptr<uint8_t>();
  };
  for (const at::Tensor& slice : slices) {
    for (int64_t channel = 0; channel < slice.size(0); ++channel) {
      const bool is_same_value = get_first_value(slice, channel) == get_first_value(first, channel);
      if (!is_same_value || !check_scan_values(slice[channel], name)) return std::nullopt;
    }
  }
  return check_scan_values(first[0], name);
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

void add_notice(std::optional<io::Notice> notice, std::vector<io::Notice>& notices) {
  if (!notice) return;
  const bool has_notice_of_kind =
      std::ranges::any_of(notices, [&](const io::Notice& existing) { return existing.kind == notice->kind; });
  if (!has_notice_of_kind) notices.push_back(*std::move(notice));
}

int64_t compute_decode_bytes(const MediaLayout& layout, int64_t bytes_per_row) {
  // Resizing allocates the resized image or frame and an intermediate result. Each is hardly
  // larger than the rows of pixels made from it.
  constexpr int64_t kNumResizeBuffers = 2;
  const int64_t row_bytes = layout.pixel_rows * bytes_per_row;
  const int64_t frames = layout.grid ? layout.grid->frames : 1;
  return layout.decode_bytes + row_bytes + kNumResizeBuffers * row_bytes / frames;
}

void check_sample_memory(const data::Sample& sample, int64_t pixel_bytes) {
  if (sample.decode_bytes + pixel_bytes <= compute_max_sample_bytes(get_host_limit_bytes())) return;
  throw data::SampleError(
      "too large for the memory",
      fmt::format("sample {}: its pixels take {} and preprocessing {} more, beyond the limit of a quarter of the "
                  "available {}; lower {} or {}",
                  sample.id, format_bytes(pixel_bytes), format_bytes(sample.decode_bytes),
                  format_bytes(get_host_limit_bytes()), keys::data::kImageMaxPixels, keys::data::kVideoMaxFrames));
}

}  // namespace vlmtrain::models
