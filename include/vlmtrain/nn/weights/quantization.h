#pragma once

#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"

namespace vlmtrain::nn {

/// The storage format of the frozen weights of Linears. Both formats are those of bitsandbytes.
enum class Quantization {
  kNone,
  kNf4,   ///< 4-bit NormalFloat with double quantization (Dettmers et al. 2023, QLoRA, arXiv 2305.14314)
  kInt8,  ///< row-wise int8 of LLM.int8 (Dettmers et al. 2022, arXiv 2208.07339), without outlier columns
};

/// Returns the names that the configuration and `--quantization` use.
inline const std::vector<std::pair<std::string, Quantization>>& get_quantization_names() {
  static const std::vector<std::pair<std::string, Quantization>> names{
      {"none", Quantization::kNone}, {"nf4", Quantization::kNf4}, {"int8", Quantization::kInt8}};
  return names;
}

/// Returns the name in get_quantization_names().
inline std::string to_string(Quantization quantization) {
  for (const auto& [name, value] : get_quantization_names()) {
    if (value == quantization) return name;
  }
  throw InternalError("unknown quantization");
}

}  // namespace vlmtrain::nn
