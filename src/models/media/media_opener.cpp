#include "models/media/media_opener.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "models/media/media_checks.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/image/volume_slices.h"

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

}  // namespace vlmtrain::models
