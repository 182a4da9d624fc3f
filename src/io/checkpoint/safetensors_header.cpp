#include "io/checkpoint/safetensors_header.h"

#include <c10/core/ScalarType.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <set>
#include <tuple>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::io {
namespace {

using nlohmann::json;

constexpr size_t kHeaderLengthBytes = 8;  // the header's length, a little-endian integer at the start of the file
constexpr uint64_t kMaxSafetensorsHeaderBytes = 100'000'000;  // MAX_HEADER_SIZE of the reference implementation
constexpr std::string_view kMetadataKey = "__metadata__";
constexpr std::string_view kDamagedFileHint = "download or write the damaged file again";
static_assert(std::endian::native == std::endian::little, "safetensors data is little-endian");
static_assert(kByteType == c10::ScalarType::Byte && kHalfType == c10::ScalarType::Half &&
                  kFloatType == c10::ScalarType::Float && kBFloat16Type == c10::ScalarType::BFloat16,
              "see base/tensor_fwd.h");

// Names of the reference implementation's Dtype (safetensors/src/tensor.rs).
constexpr std::array<std::pair<std::string_view, c10::ScalarType>, 12> kDtypeByName{{
    {"F64", c10::ScalarType::Double},
    {"F32", c10::ScalarType::Float},
    {"F16", c10::ScalarType::Half},
    {"BF16", c10::ScalarType::BFloat16},
    {"I64", c10::ScalarType::Long},
    {"I32", c10::ScalarType::Int},
    {"I16", c10::ScalarType::Short},
    {"I8", c10::ScalarType::Char},
    {"U8", c10::ScalarType::Byte},
    {"BOOL", c10::ScalarType::Bool},
    {"F8_E4M3", c10::ScalarType::Float8_e4m3fn},
    {"F8_E5M2", c10::ScalarType::Float8_e5m2},
}};

std::optional<c10::ScalarType> parse_dtype(std::string_view name) {
  const auto* it = std::ranges::find(kDtypeByName, name, [](const auto& entry) { return entry.first; });
  return it == kDtypeByName.end() ? std::nullopt : std::optional(it->second);
}

/// Returns the JSON text of the header. `content` is a prefix of the file that contains the header.
std::string_view extract_header_text(std::string_view content, size_t file_bytes, std::string_view source) {
  throw_if_lfs_pointer(source, content);
  if (file_bytes < kHeaderLengthBytes) {
    throw data_error("{}: {} bytes are too few for a safetensors file; {}", source, file_bytes, kDamagedFileHint);
  }
  uint64_t length = 0;
  std::memcpy(&length, content.data(), kHeaderLengthBytes);
  if (length > kMaxSafetensorsHeaderBytes) {
    throw data_error("{}: its header claims {} bytes, more than the format allows: not a safetensors file", source,
                     length);
  }
  if (length > file_bytes - kHeaderLengthBytes) {
    throw data_error("{}: truncated: the header is {} bytes long, but the file has {} bytes; {}", source, length,
                     file_bytes, kDamagedFileHint);
  }
  VLMTRAIN_CHECK(length <= content.size() - kHeaderLengthBytes,
                 "{} bytes of the file were given, but the header has {}", content.size(), length);
  return content.substr(kHeaderLengthBytes, length);
}

// Parses the header and refuses duplicate names. The parser keeps only the last of equal keys, so
// they are detected while it runs.
json parse_header_json(std::string_view text, std::string_view source) {
  std::set<std::string> seen_names;
  std::string duplicate_name;
  const auto detect_duplicate_name = [&](int depth, json::parse_event_t event, json& value) {
    if (event == json::parse_event_t::key && depth == 1 && !seen_names.insert(value.get<std::string>()).second) {
      duplicate_name = value.get<std::string>();
    }
    return true;
  };
  const bool is_too_deep = is_json_too_deep(text);
  json header = is_too_deep ? json() : json::parse(text, detect_duplicate_name, /*allow_exceptions=*/false);
  if (is_too_deep || header.is_discarded()) {
    const JsonError error = find_json_error(text);
    throw data_error("{}: the header is not valid JSON (line {}, column {}: {}); {}", source, error.line, error.column,
                     error.reason, kDamagedFileHint);
  }
  if (!header.is_object()) {
    throw data_error("{}: the header is not a JSON object; {}", source, kDamagedFileHint);
  }
  if (!duplicate_name.empty()) {
    throw data_error("{}: the tensor {} occurs twice in the header; {}", source, make_excerpt(duplicate_name),
                     kDamagedFileHint);
  }
  return header;
}

std::map<std::string, std::string> parse_metadata(const json& value, std::string_view source) {
  if (!value.is_object()) {
    throw data_error("{}: {} is not a JSON object; {}", source, kMetadataKey, kDamagedFileHint);
  }
  std::map<std::string, std::string> metadata;
  for (const auto& [key, text] : value.items()) {
    metadata[key] = get<std::string>(value, key, source);
  }
  return metadata;
}

// Parses the entry of a tensor. `data_start` and `data_bytes` are the offset and the size of the
// data section in the file.
TensorInfo parse_tensor_info(const json& value, const std::string& name, int64_t data_start, int64_t data_bytes,
                             std::string_view source) {
  const std::string location = fmt::format("{}: tensor {}", source, make_excerpt(name));
  const auto dtype_name = get<std::string>(value, "dtype", location);
  const std::optional<c10::ScalarType> dtype = parse_dtype(dtype_name);
  if (!dtype && (dtype_name.starts_with("F4") || dtype_name.starts_with("F6") || dtype_name.starts_with("F8"))) {
    throw data_error(
        "{}: has the type {} of quantized weights, which are not supported; use the original checkpoint in BF16, F16 "
        "or F32",
        location, make_excerpt(dtype_name));
  }
  if (!dtype) {
    throw data_error("{}: has the unknown type {}; convert the checkpoint to BF16, F16 or F32", location,
                     make_excerpt(dtype_name));
  }
  auto shape = get<std::vector<int64_t>>(value, "shape", location);
  const auto offsets = get<std::vector<int64_t>>(value, "data_offsets", location);
  if (offsets.size() != 2 || offsets[0] < 0 || offsets[1] < offsets[0]) {
    throw data_error("{}: data_offsets [{}] are not a valid begin and end; {}", location, fmt::join(offsets, ", "),
                     kDamagedFileHint);
  }
  const int64_t expected_bytes = compute_tensor_bytes(*dtype, shape);
  if (expected_bytes < 0) {
    throw data_error("{}: the shape [{}] is invalid; {}", location, fmt::join(shape, ", "), kDamagedFileHint);
  }
  if (offsets[1] - offsets[0] != expected_bytes) {
    throw data_error("{}: {} [{}] takes {} bytes, but its data_offsets span {}; {}", location, dtype_name,
                     fmt::join(shape, ", "), expected_bytes, offsets[1] - offsets[0], kDamagedFileHint);
  }
  if (offsets[1] > data_bytes) {
    throw data_error("{}: its data ends at byte {}, but the file ends at byte {}: truncated; {}", location,
                     static_cast<uint64_t>(data_start) + static_cast<uint64_t>(offsets[1]), data_start + data_bytes,
                     kDamagedFileHint);
  }
  return {.dtype = *dtype,
          .shape = std::move(shape),
          .offset_bytes = data_start + offsets[0],
          .size_bytes = expected_bytes};
}

// Throws data_error unless every byte of the data belongs to exactly one tensor, as the format
// requires. REQUIRES: header.names are in the order of the data.
void check_data_layout(const SafetensorsHeader& header, int64_t data_start, int64_t file_bytes,
                       std::string_view source) {
  int64_t end = data_start;
  for (const std::string& name : header.names) {
    const TensorInfo& tensor = header.tensors.at(name);
    if (tensor.offset_bytes != end) {
      throw data_error("{}: tensor {} {}; {}", source, make_excerpt(name),
                       tensor.offset_bytes < end ? "overlaps the one before it" : "leaves a gap before it",
                       kDamagedFileHint);
    }
    end += tensor.size_bytes;
  }
  if (end != file_bytes) {
    throw data_error("{}: {} bytes after the last tensor belong to no tensor; {}", source, file_bytes - end,
                     kDamagedFileHint);
  }
}

}  // namespace

std::string_view to_safetensors_dtype(c10::ScalarType dtype) {
  const auto* it = std::ranges::find(kDtypeByName, dtype, [](const auto& entry) { return entry.second; });
  VLMTRAIN_CHECK(it != kDtypeByName.end(), "safetensors has no type for {}", c10::toString(dtype));
  return it->first;
}

int64_t compute_tensor_bytes(c10::ScalarType dtype, const std::vector<int64_t>& shape) {
  auto bytes = static_cast<int64_t>(c10::elementSize(dtype));
  bool is_empty = false;
  for (const int64_t size : shape) {
    is_empty = is_empty || size == 0;
    // Dimensions of 0 count as 1, so that they do not hide an overflow: strides are products of the
    // other dimensions.
    if (size < 0 || __builtin_mul_overflow(bytes, std::max<int64_t>(size, 1), &bytes)) {
      return -1;
    }
  }
  return is_empty ? 0 : bytes;
}

UserError make_missing_tensor_error(const std::filesystem::path& path, const std::string& name) {
  return data_error("{}: has no tensor {}; use the weights that belong to config.json", path.string(), name);
}

SafetensorsHeader parse_safetensors_header(std::string_view content, std::string_view source) {
  return parse_safetensors_header(content, static_cast<int64_t>(content.size()), source);
}

int64_t compute_header_end(std::string_view first_bytes) {
  if (first_bytes.size() < kHeaderLengthBytes) return static_cast<int64_t>(first_bytes.size());
  uint64_t length = 0;
  std::memcpy(&length, first_bytes.data(), kHeaderLengthBytes);
  return static_cast<int64_t>(kHeaderLengthBytes + std::min(length, kMaxSafetensorsHeaderBytes));
}

SafetensorsHeader parse_safetensors_header(std::string_view content, int64_t file_bytes, std::string_view source) {
  const std::string_view text = extract_header_text(content, static_cast<size_t>(file_bytes), source);
  const auto data_start = static_cast<int64_t>(kHeaderLengthBytes + text.size());
  SafetensorsHeader header;
  const json entries = parse_header_json(text, source);
  for (const auto& [name, value] : entries.items()) {
    if (name == kMetadataKey) {
      header.metadata = parse_metadata(value, source);
      continue;
    }
    header.tensors.emplace(name, parse_tensor_info(value, name, data_start, file_bytes - data_start, source));
    header.names.push_back(name);
  }
  std::ranges::sort(header.names, {}, [&](const std::string& name) {
    const TensorInfo& tensor = header.tensors.at(name);
    return std::tuple(tensor.offset_bytes, tensor.size_bytes, name);
  });
  check_data_layout(header, data_start, file_bytes, source);
  return header;
}

std::string format_safetensors_header(const std::vector<std::pair<std::string, TensorInfo>>& tensors,
                                      const std::map<std::string, std::string>& metadata) {
  json header = json::object();
  if (!metadata.empty()) {
    header[kMetadataKey] = metadata;
  }
  int64_t end = 0;
  for (const auto& [name, tensor] : tensors) {
    const int64_t begin = std::exchange(end, end + tensor.size_bytes);
    header[name] = {
        {"dtype", to_safetensors_dtype(tensor.dtype)}, {"shape", tensor.shape}, {"data_offsets", {begin, end}}};
  }
  std::string text = header.dump();
  // The length and the padded header together are a multiple of 8 bytes, as the data's alignment.
  text.append((kHeaderLengthBytes - text.size() % kHeaderLengthBytes) % kHeaderLengthBytes, ' ');
  const uint64_t length = text.size();
  std::string result(kHeaderLengthBytes, '\0');
  std::memcpy(result.data(), &length, kHeaderLengthBytes);
  return result + text;
}

}  // namespace vlmtrain::io
