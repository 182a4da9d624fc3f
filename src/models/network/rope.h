#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/base/tensor_fwd.h"

namespace vlmtrain::models {

/// The method that extends RoPE to contexts longer than in pretraining, as transformers'
/// `rope_type`.
enum class RopeType {
  kDefault,       ///< no extension
  kLinear,        ///< all frequencies divided by `factor` (Chen et al. 2023, arXiv 2306.15595)
  kLlama3,        ///< low frequencies divided by `factor`, with a smooth transition (Llama 3.1)
  kProportional,  ///< partial RoPE over the whole head: the pairs after the first do not rotate (Gemma 4)
  kYarn,          ///< a ramp between frequencies, and a scale of cosine and sine (Peng et al. 2023, arXiv 2309.00071)
};

/// The configuration of a text model's rotary position embedding.
struct RopeConfig {
  /// transformers' rope_theta of most text models.
  static constexpr double kDefaultTheta = 10000.0;

  RopeType type = RopeType::kDefault;
  double theta = kDefaultTheta;
  double factor = 1;                                 ///< all but default: extension of the context
  double original_max_positions = 0;                 ///< llama3 and yarn: context length of pretraining, in tokens
  double low_freq_factor = 1, high_freq_factor = 4;  ///< llama3: bounds of the transition
  double beta_fast = 32, beta_slow = 1;              ///< yarn: rotations over the context at the ends of the ramp
  bool truncate = true;                              ///< yarn: rounds the ends of the ramp to whole pairs
  double scale = 1;                                  ///< yarn: factor of cosine and sine
  double partial_rotary_factor = 1;                  ///< share of a head's features that rotate, the first ones

  /// Multimodal RoPE (Wang et al. 2024, arXiv 2409.12191): consecutive numbers of pairs that rotate
  /// with the time, height and width axes in turn, starting again with time after width. A pair is
  /// two features of a head. Empty: one position per token.
  std::vector<int64_t> sections = {};
  /// Interleaves the axes (Qwen3-VL, Bai et al. 2025, arXiv 2511.21631). Pairs 1, 4, 7, … rotate
  /// with height and pairs 2, 5, 8, … with width, as many as their sections specify. All other
  /// pairs rotate with time.
  bool is_mrope_interleaved = false;

  /// Reads `rope_parameters` (transformers 5), or `rope_scaling` and `rope_theta` (transformers 4)
  /// of a text config. Throws UserError (kBadData) for other types, such as `dynamic`. `source`
  /// names the file in errors.
  static RopeConfig from_json(const nlohmann::json& text_config, const std::string& source);
  /// Does the same with the theta and partial_rotary_factor of `defaults`. If not
  /// `supports_partial_rope`, throws UserError (kBadData) for a partial_rotary_factor other than 1.
  static RopeConfig from_json(const nlohmann::json& text_config, const std::string& source, const RopeConfig& defaults,
                              bool supports_partial_rope);

  /// Returns the number of features of a head that rotate. With proportional RoPE, all do, some by 0.
  int64_t compute_rotary_dim(int64_t head_dim) const {
    if (type == RopeType::kProportional) return head_dim;
    return static_cast<int64_t>(static_cast<double>(head_dim) * partial_rotary_factor);  // rounded down
  }
  /// Returns the frequencies, fp32 [rotary_dim / 2] on the CPU, rounded as in transformers.
  at::Tensor compute_frequencies(int64_t head_dim) const;

  /// Returns the axis of each pair, an index into data::kNumPositionAxes axes, as int64 [rotary_dim /
  /// 2] on the CPU; empty without sections.
  at::Tensor make_pair_axes() const;
};

}  // namespace vlmtrain::models
