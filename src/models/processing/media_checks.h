#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/memory/host_memory.h"

namespace vlmtrain::models {

/// Returns a notice about a decoded image, uint8 [3, height, width], that has a single color or
/// uses less than 1/16 of its value range, as 12-bit values in a 16-bit file do. `name` is its
/// file's.
std::optional<io::Notice> check_image_pixels(const at::Tensor& image, const std::string& name);

/// Returns a notice about a scan, after normalization or windowing, whose values are all equal.
/// `values` is contiguous, of any dtype.
std::optional<io::Notice> check_scan_values(const at::Tensor& values, const std::string& name);

/// Returns a notice about a scan whose slices all have the same single color.
std::optional<io::Notice> check_slices(const std::vector<at::Tensor>& slices, const std::string& name);

/// Adds a notice unless one of its kind exists.
void add_notice(std::optional<io::Notice> notice, std::vector<io::Notice>& notices);

/// Returns function(). Converts its errors to data::SampleError of the record, naming the medium.
template <class Function>
auto read_medium(const io::Record& record, data::MediaKind kind, const Function& function) {
  try {
    return function();
  } catch (const UserError& error) {
    const char* const reason = kind == data::MediaKind::kVideo    ? "unusable video"
                               : kind == data::MediaKind::kVolume ? "unusable volume"
                                                                  : "unreadable image";
    throw data::SampleError(reason, fmt::format("sample {}: {}", record.id, error.what()));
  }
}

/// Returns the host memory available to this process.
inline int64_t host_bytes() {
  static const int64_t bytes = memory::host_limit_bytes();
  return bytes;
}

/// Returns the host memory that one sample may use. Several threads make samples, and the model
/// needs the rest.
inline int64_t max_sample_bytes(int64_t host_bytes) {
  return host_bytes / 4;
}

}  // namespace vlmtrain::models
