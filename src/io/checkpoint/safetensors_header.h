#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::io {

/// Returns the data_error for a tensor that a file or folder does not contain.
UserError make_missing_tensor_error(const std::filesystem::path& path, const std::string& name);

/// Parsed header of a safetensors file.
struct SafetensorsHeader {
  std::vector<std::string> names;  ///< in the order of the data
  std::unordered_map<std::string, TensorInfo> tensors;
  std::map<std::string, std::string> metadata;  ///< "__metadata__"; empty if the header has none
};

/// Parses and checks the header of a safetensors file. `content` is the whole file. Throws
/// data_error that names `source` and the tensor if lengths, dtypes, shapes or offsets are invalid.
SafetensorsHeader parse_safetensors_header(std::string_view content, std::string_view source);

/// Same for a file of `file_bytes` bytes. REQUIRES: `content` is a prefix of the file with at least
/// compute_header_end() bytes, or the whole file.
SafetensorsHeader parse_safetensors_header(std::string_view content, int64_t file_bytes, std::string_view source);
/// Returns the offset of the end of the header, given the first 8 or more bytes of the file. The
/// result is limited to the format's largest header, because the bytes may be anything. Returns the
/// size of `first_bytes` if it has fewer than 8.
int64_t compute_header_end(std::string_view first_bytes);

/// Returns the header, including its length, for tensors written in the given order. It is padded
/// with spaces so that the data starts at a multiple of 8 bytes. TensorInfo::offset_bytes is
/// ignored, because the offsets follow from the order. REQUIRES: the format supports the dtypes.
std::string format_safetensors_header(const std::vector<std::pair<std::string, TensorInfo>>& tensors,
                                      const std::map<std::string, std::string>& metadata);

/// Returns the size of a tensor's data in bytes, or -1 if a dimension is negative or the size does
/// not fit in int64_t.
int64_t compute_tensor_bytes(c10::ScalarType dtype, const std::vector<int64_t>& shape);

}  // namespace vlmtrain::io
