#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/sample.h"
#include "vlmtrain/io/notice.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/memory/host.h"

namespace vlmtrain::models {

/// Returns what is wrong with a decoded image, uint8 [3, height, width], that has one color all over, or that uses less
/// than a sixteenth of its range of values: 12 bits in a file of 16, which are nearly black. `name`: of its file.
std::optional<io::Notice> check_image_pixels(const at::Tensor& image, const std::string& name);

/// Returns what is wrong with the values of a scan, after its normalization or window, that are all the same. `values`:
/// contiguous, of any type.
std::optional<io::Notice> check_scan_values(const at::Tensor& values, const std::string& name);

/// The same of all slices of a scan together, each of one color.
std::optional<io::Notice> check_slices(const std::vector<at::Tensor>& slices, const std::string& name);

/// Adds a notice unless there is one of its kind.
void add_notice(std::optional<io::Notice> notice, std::vector<io::Notice>& notices);

/// What `function` gives; its error is one of the record that names the medium.
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

/// What this process may have.
inline int64_t host_bytes() {
  static const int64_t bytes = memory::host_limit_bytes();
  return bytes;
}

/// Of the host's memory, what making one sample may take: several threads do that, and the rest is the model's.
inline int64_t max_sample_bytes(int64_t host_bytes) {
  return host_bytes / 4;
}

}  // namespace vlmtrain::models
