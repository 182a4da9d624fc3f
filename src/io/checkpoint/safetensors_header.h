#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::io {

struct SafetensorsHeader {
  std::vector<std::string> names;  ///< in the order of the data
  std::unordered_map<std::string, TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
};

/// Reads and checks the header of a safetensors file's whole content; `source` is the file that a data_error names.
SafetensorsHeader parse_safetensors_header(std::string_view content, std::string_view source);

/// The same of a file of `file_bytes`, of which `content` holds the beginning: compute_header_end() of it at least.
SafetensorsHeader parse_safetensors_header(std::string_view content, int64_t file_bytes, std::string_view source);
/// How long a file is up to the end of its header, by its first 8 bytes; at most as long as the format allows.
int64_t compute_header_end(std::string_view first_bytes);

/// The header for tensors written in the order given, length included, padded so that the data starts at a multiple of
/// 8 bytes. Offsets are not read: they follow from the order.
std::string format_safetensors_header(const std::vector<std::pair<std::string, TensorInfo>>& tensors,
                                      const std::map<std::string, std::string>& metadata);

/// The size of a tensor's data; -1 where a dimension is negative or the size does not fit 63 bits.
int64_t compute_tensor_bytes(c10::ScalarType dtype, const std::vector<int64_t>& shape);

}  // namespace vlmtrain::io
