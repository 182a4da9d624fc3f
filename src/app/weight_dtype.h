#pragma once

#include <c10/core/ScalarType.h>

#include <optional>
#include <string>
#include <vector>

namespace vlmtrain::app {

/// Names that --dtype accepts for floating-point types.
inline const std::vector<std::string>& weight_dtype_names() {
  static const std::vector<std::string> names{"float32", "bfloat16", "float16", "fp32", "bf16", "fp16"};
  return names;
}

/// Returns the type of one of weight_dtype_names(), or nothing for any other word.
inline std::optional<at::ScalarType> parse_weight_dtype(const std::string& name) {
  if (name == "float32" || name == "fp32") return at::kFloat;
  if (name == "bfloat16" || name == "bf16") return at::kBFloat16;
  if (name == "float16" || name == "fp16") return at::kHalf;
  return std::nullopt;
}

}  // namespace vlmtrain::app
