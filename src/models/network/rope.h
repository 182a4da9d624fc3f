#pragma once

#include <ATen/core/Tensor.h>
#include <nlohmann/json.hpp>

#include <cstdint>
#include <string>
#include <vector>

namespace vlmtrain::models {

/// The extension of RoPE frequencies to contexts longer than the pretraining's, by transformers'
/// `rope_type`.
enum class RopeType {
  kDefault,  ///< none
  kLinear,   ///< all divided by `factor` (Chen et al. 2023, arXiv 2306.15595)
  kLlama3,   ///< low frequencies divided by `factor`, with a smooth transition (Llama 3.1)
  kYarn,     ///< a ramp between frequencies, and a scale of cosine and sine (Peng et al. 2023, arXiv 2309.00071)
};

/// The configuration of a text model's rotary position embedding.
struct RopeConfig {
  RopeType type = RopeType::kDefault;
  double theta = 10000.0;
  double factor = 1;
  double original_max_positions = 0;                 ///< llama3 and yarn: tokens of the pretraining's context
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3
  double beta_fast = 32, beta_slow = 1;              ///< yarn
  bool truncate = true;                              ///< yarn: rounds the ends of the ramp to full pairs
  double scale = 1;                                  ///< yarn: factor of cosine and sine

  /// Numbers of pairs that rotate with each of the data::kPositionAxes axes, cyclically from time:
  /// [time, height, width, time …] (multimodal RoPE, Wang et al. 2024, arXiv 2409.12191). Empty:
  /// one position per token.
  std::vector<int64_t> sections = {};
  /// Interleaves the axes instead of using blocks: every third pair from the second on rotates with
  /// height, from the third on with width, as many as their sections say, all others with time
  /// (Qwen3-VL, Bai et al. 2025, arXiv 2511.21631).
  bool interleaved = false;

  /// Reads `rope_parameters` (transformers 5), or `rope_scaling` and `rope_theta` (transformers 4)
  /// of a text config. Throws UserError (kBadData) for other types, such as `dynamic`. `source`
  /// names the file in errors.
  static RopeConfig from_json(const nlohmann::json& text_config, const std::string& source);

  /// Returns the frequencies, fp32 [head_dim / 2] on the CPU, rounded as in transformers.
  at::Tensor frequencies(int64_t head_dim) const;

  /// Returns the axis of each pair, int64 [head_dim / 2] on the CPU; empty without sections.
  at::Tensor make_pair_axes() const;
};

}  // namespace vlmtrain::models
