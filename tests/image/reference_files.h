#pragma once

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace vlmtrain {

inline const std::filesystem::path kImageData = std::filesystem::path(VLMTRAIN_SOURCE_DIR) / "tests/image/data";

inline std::vector<std::byte> read_test_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  EXPECT_TRUE(file) << path;
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  const auto* first = reinterpret_cast<const std::byte*>(content.data());
  return {first, first + content.size()};
}

inline nlohmann::json read_test_json(const std::filesystem::path& path) {
  return nlohmann::json::parse(std::ifstream(path));
}

/// Returns the bytes of a contiguous CPU tensor.
inline std::vector<std::byte> to_bytes(const at::Tensor& tensor) {
  EXPECT_TRUE(tensor.is_contiguous());
  const auto* first = static_cast<const std::byte*>(tensor.const_data_ptr());
  return {first, first + tensor.nbytes()};
}

/// Returns zlib's CRC-32 in eight hexadecimal digits.
inline std::string compute_crc32(const at::Tensor& tensor) {
  static const std::array<uint32_t, 256> kTable = [] {
    std::array<uint32_t, 256> table{};
    for (uint32_t i = 0; i < table.size(); ++i) {
      table[i] = i;
      for (int bit = 0; bit < 8; ++bit) table[i] = table[i] >> 1 ^ (table[i] & 1 ? 0xEDB88320U : 0U);
    }
    return table;
  }();
  uint32_t crc = 0xFFFFFFFFU;
  for (const std::byte byte : to_bytes(tensor)) crc = crc >> 8 ^ kTable[(crc ^ static_cast<uint32_t>(byte)) & 0xFF];
  std::array<char, 9> text{};
  std::snprintf(text.data(), text.size(), "%08x", ~crc);
  return text.data();
}

/// Returns the index of the first difference between two byte strings, or -1 if they are equal.
inline int64_t find_first_difference(const std::vector<std::byte>& a, const std::byte* b, size_t size) {
  if (a.size() != size) return static_cast<int64_t>(std::min(a.size(), size));
  for (size_t i = 0; i < size; ++i) {
    if (a[i] != b[i]) return static_cast<int64_t>(i);
  }
  return -1;
}

}  // namespace vlmtrain
