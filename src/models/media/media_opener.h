#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "models/media/media_layout.h"
#include "models/media/medium.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/data/media_options.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::models {

/// The media of a record, in the order of their placeholders in the rendered chat.
using MediaList = std::vector<std::unique_ptr<Medium>>;

/// Opens the media of records with the readers of a family. Thread-safe. All functions throw
/// data::SampleError, which names the record.
class MediaOpener {
 public:
  /// `max_images` is data.max_images_per_sample; nullopt: no limit.
  MediaOpener(MediaReaders readers, data::VolumeOptions volume_settings, std::optional<int64_t> max_images)
      : readers_(std::move(readers)), volume_settings_(std::move(volume_settings)), max_images_(max_images) {}

  /// Throws for media that the family or the settings do not allow.
  void check_supported_media(const io::Record& record) const;

  /// Returns `turns`, those of the record, with a placeholder for each slice of a volume that is used
  /// as images.
  std::vector<text::Turn> expand_slice_placeholders(const io::Record& record, std::vector<text::Turn> turns) const;

  /// Opens the media of a rendered chat and reads their headers. The record must outlive the
  /// result. `template_name` is for messages. Throws for media that the chat lacks or that cannot
  /// be read. REQUIRES: check_supported_media() has returned.
  MediaList open(const io::Record& record, const text::RenderedChat& chat, std::string_view template_name) const;

 private:
  /// A medium to be opened.
  struct MediumSource {
    const io::MediaRef* file;
    data::MediaKind kind;
    std::optional<size_t> slice{};  ///< index of the slice of a volume that is used as images
  };

  bool uses_volume_slices() const { return volume_settings_.input_form == data::VolumeInputForm::kSlices; }
  /// Throws for any media. For models without a vision tower.
  static void reject_media(const io::Record& record);
  void check_volumes(const io::Record& record) const;
  void check_num_images(const io::Record& record, const std::vector<int64_t>& images_per_placeholder) const;
  /// Returns the number of images that each image placeholder stands for: 1, or the number of
  /// slices of a volume.
  std::vector<int64_t> count_images_per_placeholder(const io::Record& record) const;
  /// Assigns the record's files to the chat's placeholders.
  std::vector<MediumSource> find_sources(const io::Record& record, const text::RenderedChat& chat,
                                         std::string_view template_name) const;

  MediaReaders readers_;
  data::VolumeOptions volume_settings_;
  std::optional<int64_t> max_images_;
};

/// Returns a notice if a decoded image, contiguous uint8 [3, height, width], has a single color or
/// uses less than 1/16 of the value range, as 12-bit values in a 16-bit file do; else nothing.
/// `name` is the file's name in the notice, here and below.
std::optional<io::Notice> check_image_pixels(const at::Tensor& image, const std::string& name);

/// Returns a notice if all values of a scan are equal after normalization or windowing; else
/// nothing. `values` is contiguous, of any shape and dtype.
std::optional<io::Notice> check_scan_values(const at::Tensor& values, const std::string& name);

/// Returns a notice if all slices of a scan, contiguous uint8 [3, height, width], have the same
/// single color; else nothing.
std::optional<io::Notice> check_volume_slices(const std::vector<at::Tensor>& slices, const std::string& name);

/// Adds a notice, if any, unless `notices` has one of its kind.
void add_notice(std::optional<io::Notice> notice, std::vector<io::Notice>& notices);

/// Returns the result of `function`, which reads a medium of `record`. Converts its UserErrors to
/// data::SampleError, which names the record.
template <class Function>
auto rethrow_medium_errors(const io::Record& record, data::MediaKind kind, const Function& function) {
  try {
    return function();
  } catch (const UserError& error) {
    const char* const reason = kind == data::MediaKind::kVideo    ? "unusable video"
                               : kind == data::MediaKind::kVolume ? "unusable volume"
                                                                  : "unreadable image";
    throw data::SampleError(reason, fmt::format("sample {}: {}", record.id, error.what()));
  }
}

/// Returns the limit on this process's host memory in bytes, determined once per process.
inline int64_t get_host_limit_bytes() {
  static const int64_t bytes = memory::get_host_limit_bytes();
  return bytes;
}

/// Returns the host memory in bytes that one sample may use, given the available memory. A quarter,
/// since several threads make samples and the model needs the rest. Not tuned.
inline int64_t compute_max_sample_bytes(int64_t available_bytes) {
  return available_bytes / 4;
}

/// Returns the memory in bytes for decoding an image, or the frames of a video one by one, of the
/// given size. Throws UserError (kBadData) if it exceeds compute_max_sample_bytes() of
/// `available_bytes`.
int64_t check_decode_bytes(image::ImageSize size, data::MediaKind kind, int64_t available_bytes);

/// Returns the peak host memory for decoding and preprocessing a medium, as
/// data::Sample::decode_bytes. `bytes_per_row`: of a row of pixels.
int64_t compute_decode_bytes(const MediaLayout& layout, int64_t bytes_per_row);

/// Throws data::SampleError if a sample with `pixel_bytes` of pixels needs more than its share of
/// host memory.
void check_sample_memory(const data::Sample& sample, int64_t pixel_bytes);

}  // namespace vlmtrain::models
