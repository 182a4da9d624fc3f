#pragma once

#include <string>
#include <utility>
#include <vector>

namespace vlmtrain::nn {

/// The storage format of the frozen weights of Linears. Both formats are those of bitsandbytes.
enum class Quantization {
  kNone,
  kNf4,   ///< 4-bit NormalFloat with double quantization (Dettmers et al. 2023, QLoRA, arXiv 2305.14314)
  kInt8,  ///< row-wise int8 of LLM.int8 (Dettmers et al. 2022, arXiv 2208.07339), without outlier columns
};

/// Returns the names that the configuration and `--quantization` use.
const std::vector<std::pair<std::string, Quantization>>& get_quantization_names();
/// Returns the name in get_quantization_names().
std::string to_string(Quantization quantization);

}  // namespace vlmtrain::nn
