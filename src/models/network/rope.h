#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace vlmtrain::models {

/// How a text model's rotary frequencies are stretched for contexts longer than it was trained on; the names are those
/// of transformers' `rope_type`.
enum class RopeType {
  kDefault,  ///< not at all
  kLinear,   ///< all divided by `factor` (Chen et al. 2023, arXiv 2306.15595)
  kLlama3,   ///< the low ones divided by `factor`, with a smooth passage (Llama 3.1)
  kYarn,     ///< ramp between the pairs, and a scale for cosine and sine (Peng et al. 2023, arXiv 2309.00071)
};

struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1;
  double original_max_positions = 0;                 ///< llama3 and yarn: the context of the pretraining, in tokens
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3
  double beta_fast = 32, beta_slow = 1;              ///< yarn
  bool truncate = true;                              ///< yarn: whole pairs as the ramp's ends
  double scale = 1;                                  ///< yarn: multiplies cosine and sine

  /// Pairs that turn with each of data::kPositionAxes axes in turn, time first: [time, height, width, time …] (Wang et
  /// al. 2024, arXiv 2409.12191: multimodal rotary embedding). Empty: a token has one position.
  std::vector<int64_t> sections = {};
  /// The pairs of height and width are not blocks but every third, from the second and the third on, as many as their
  /// sections say; all others turn with time (Bai et al. 2025, arXiv 2511.21631: Qwen3-VL).
  bool interleaved = false;

  /// Reads `rope_parameters` (transformers 5), `rope_scaling` and `rope_theta` (transformers 4) of a text config. Other
  /// types, `dynamic` among them, are refused. `source` names the file in errors.
  static RopeConfig from_json(const nlohmann::json& text_config, const std::string& source);

  /// fp32 [head_dim / 2] on the CPU, with the roundings of transformers.
  at::Tensor frequencies(int64_t head_dim) const;

  /// The axis of each pair, int64 [head_dim / 2] on the CPU; of no entries where there are no sections.
  at::Tensor make_pair_axes() const;
};

}  // namespace vlmtrain::models
