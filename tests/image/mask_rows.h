#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>

#include <string>
#include <vector>

namespace vlmtrain {

/// Returns a mask as rows of the characters 0 and 1.
inline std::vector<std::string> to_rows(const at::Tensor& mask) {
  std::vector<std::string> rows;
  for (int64_t y = 0; y < mask.size(0); ++y) {
    std::string& row = rows.emplace_back();
    for (int64_t x = 0; x < mask.size(1); ++x) row += static_cast<char>('0' + mask[y][x].item<int>());
  }
  return rows;
}

inline at::Tensor make_mask(const std::vector<std::string>& rows) {
  const auto height = static_cast<int64_t>(rows.size());
  const auto width = static_cast<int64_t>(rows.at(0).size());
  at::Tensor mask = at::zeros({height, width}, at::kByte);
  for (int64_t y = 0; y < height; ++y) {
    for (int64_t x = 0; x < width; ++x) {
      if (rows[y][x] == '1') mask.mutable_data_ptr<uint8_t>()[y * width + x] = 1;
    }
  }
  return mask;
}

}  // namespace vlmtrain
