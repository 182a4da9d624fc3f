#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::io {

/// Parsed header of a safetensors file.
struct SafetensorsHeader {
  std::vector<std::string> names;  ///< in the order of the data
  std::unordered_map<std::string, TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
};

/// Parses and checks the header of a safetensors file. `content` is the whole file; errors name
/// `source`. Throws data_error.
SafetensorsHeader parse_safetensors_header(std::string_view content, std::string_view source);

/// Same for a file of `file_bytes`. REQUIRES: `content` is a prefix of at least
/// compute_header_end() bytes.
SafetensorsHeader parse_safetensors_header(std::string_view content, int64_t file_bytes, std::string_view source);
/// Returns the offset of the end of the header, given the first 8 bytes of the file. The result is
/// at most the limit of the format.
int64_t compute_header_end(std::string_view first_bytes);

/// Returns the header, including its length, for tensors written in the given order. It is padded
/// so that the data starts at a multiple of 8 bytes. Offsets of `tensors` are ignored, because they
/// follow from the order.
std::string format_safetensors_header(const std::vector<std::pair<std::string, TensorInfo>>& tensors,
                                      const std::map<std::string, std::string>& metadata);

/// Returns the size of a tensor's data, or -1 if a dimension is negative or the size exceeds 63
/// bits.
int64_t compute_tensor_bytes(c10::ScalarType dtype, const std::vector<int64_t>& shape);

}  // namespace vlmtrain::io
