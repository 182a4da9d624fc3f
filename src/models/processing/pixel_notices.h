#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/io/notice.h"

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

}  // namespace vlmtrain::models
