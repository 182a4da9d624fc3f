#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "models/media/media_layout.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/memory/host_memory.h"

namespace vlmtrain::models {

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
