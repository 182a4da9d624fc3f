#include "models/media/media_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/image/image_file.h"
#include "vlmtrain/image/video.h"

namespace vlmtrain::models {

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
                        "an image is nearly black: it uses less than a sixteenth of its value range, such as 12 bits "
                        "in a 16-bit file; scale its values to the full range and save it again",
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
