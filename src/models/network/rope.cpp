#include "models/network/rope.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>
#include <numeric>

#include "models/checkpoints/config_checks.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/nn/layers/position_embedding.h"

namespace vlmtrain::models {

namespace {

RopeType parse_rope_type(const std::string& name, const std::string& source, const char* key) {
  if (name == "default") return RopeType::kDefault;
  if (name == "linear") return RopeType::kLinear;
  if (name == "llama3") return RopeType::kLlama3;
  if (name == "proportional") return RopeType::kProportional;
  if (name == "yarn") return RopeType::kYarn;
  throw data_error("{}: {} of type {} is not supported; supported: default, linear, llama3, proportional, yarn", source,
                   key, name);
}

/// Returns the scale of cosine and sine in YaRN (arXiv 2309.00071, section 3.4), as transformers
/// computes it.
double compute_yarn_mscale(double factor, double weight) {
  return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

// Far beyond any useful value, so only damaged files are rejected.
constexpr NumberRange kRopeFactorRange{0, 1e6};
constexpr NumberRange kAttentionFactorRange{0, 1e6};
constexpr NumberRange kYarnBetaRange{0, 1e6};

double read_yarn_attention_factor(const nlohmann::json& rope, double factor, const std::string& source) {
  const double mscale = io::get_or<double>(rope, "mscale", 0, source);
  const double mscale_all_dim = io::get_or<double>(rope, "mscale_all_dim", 0, source);
  const double default_attention_factor =
      mscale != 0 && mscale_all_dim != 0
          ? compute_yarn_mscale(factor, mscale) / compute_yarn_mscale(factor, mscale_all_dim)
          : compute_yarn_mscale(factor, 1);
  return read_number(rope, "attention_factor", default_attention_factor, kAttentionFactorRange, source);
}

/// Returns the scaled frequencies, with transformers' arithmetic (_compute_llama3_parameters in
/// modeling_rope_utils.py).
at::Tensor compute_llama3_frequencies(const at::Tensor& base_frequencies, const RopeConfig& rope) {
  const double low_freq_wavelen = rope.original_max_positions / rope.low_freq_factor;
  const double high_freq_wavelen = rope.original_max_positions / rope.high_freq_factor;
  const at::Tensor wavelen = 2 * std::numbers::pi / base_frequencies;
  const at::Tensor scaled_frequencies =
      at::where(wavelen > low_freq_wavelen, base_frequencies / rope.factor, base_frequencies);
  const at::Tensor smooth_factor =
      (rope.original_max_positions / wavelen - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor smoothed_frequencies =
      (1 - smooth_factor) * scaled_frequencies / rope.factor + smooth_factor * scaled_frequencies;
  return at::where((wavelen >= high_freq_wavelen).logical_and_(wavelen <= low_freq_wavelen), smoothed_frequencies,
                   scaled_frequencies);
}

/// Returns YaRN's frequencies, with transformers' arithmetic and names (_compute_yarn_parameters in
/// modeling_rope_utils.py).
at::Tensor compute_yarn_frequencies(const RopeConfig& rope, int64_t head_dim) {
  const auto rotary_dim = static_cast<double>(head_dim);
  /// Returns the index of the pair that makes `num_rotations` rotations over the context of
  /// pretraining.
  const auto find_correction_dim = [&](double num_rotations) {
    return rotary_dim * std::log(rope.original_max_positions / (num_rotations * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low_dim = find_correction_dim(rope.beta_fast);
  double high_dim = find_correction_dim(rope.beta_slow);
  if (rope.truncate) {
    low_dim = std::floor(low_dim);
    high_dim = std::ceil(high_dim);
  }
  low_dim = std::max(low_dim, 0.0);
  high_dim = std::min(high_dim, rotary_dim - 1);
  if (low_dim == high_dim) high_dim += 0.001;  // as in transformers; prevents a division by zero
  const at::Tensor ramp = ((at::arange(head_dim / 2, at::kFloat) - low_dim) / (high_dim - low_dim)).clamp_(0, 1);
  const at::Tensor extrapolation_factor = 1 - ramp;
  const at::Tensor pos_freqs = at::pow(rope.theta, at::arange(0, head_dim, 2, at::kFloat).div_(rotary_dim));
  const at::Tensor inv_freq_interpolation = (rope.factor * pos_freqs).reciprocal_();
  return inv_freq_interpolation * (1 - extrapolation_factor) + pos_freqs.reciprocal() * extrapolation_factor;
}

/// Returns the frequencies, 0 for pairs that do not rotate, with transformers' arithmetic
/// (_compute_proportional_rope_parameters in modeling_rope_utils.py).
at::Tensor compute_proportional_frequencies(const RopeConfig& rope, int64_t head_dim) {
  const auto rotated_features = static_cast<int64_t>(rope.partial_rotary_factor * static_cast<double>(head_dim));
  at::Tensor frequencies = nn::compute_inv_freq(head_dim, rope.theta).div_(rope.factor);
  frequencies.slice(0, rotated_features / 2).zero_();
  return frequencies;
}

constexpr NumberRange kPartialRotaryRange{1e-3, 1};

}  // namespace

RopeConfig RopeConfig::from_json(const nlohmann::json& config, const std::string& source) {
  return from_json(config, source, RopeConfig{}, /*supports_partial_rope=*/false);
}

RopeConfig RopeConfig::from_json(const nlohmann::json& config, const std::string& source, const RopeConfig& defaults,
                                 bool supports_partial_rope) {
  RopeConfig result;
  result.theta = read_number(config, "rope_theta", defaults.theta, kRopeThetaRange, source);
  const char* const partial_key = "partial_rotary_factor";
  if (supports_partial_rope) {
    result.partial_rotary_factor =
        read_number(config, partial_key, defaults.partial_rotary_factor, kPartialRotaryRange, source);
  }
  // transformers prefers the older key if both exist.
  const nlohmann::json scaling = get_section(config, "rope_scaling", source);
  const nlohmann::json parameters = get_section(config, "rope_parameters", source);
  const char* key = scaling.empty() ? "rope_parameters" : "rope_scaling";
  const nlohmann::json& rope = scaling.empty() ? parameters : scaling;
  if (rope.empty()) return result;
  result.theta = read_number(rope, "rope_theta", result.theta, kRopeThetaRange, fmt::format("{} ({})", source, key));
  const auto legacy_rope_type = io::get_or<std::string>(rope, "type", "default", source);
  result.type = parse_rope_type(io::get_or<std::string>(rope, "rope_type", legacy_rope_type, source), source, key);
  if (supports_partial_rope) {
    result.partial_rotary_factor = read_number(rope, partial_key, result.partial_rotary_factor, kPartialRotaryRange,
                                               fmt::format("{} ({})", source, key));
  } else if (io::get_or<double>(rope, partial_key, 1, source) != 1) {
    throw data_error("{}: {}.{} other than 1 is not supported; use a checkpoint without it", source, key, partial_key);
  }
  if (result.type == RopeType::kDefault) return result;

  const bool needs_factor = result.type != RopeType::kProportional;
  result.factor =
      needs_factor ? io::get<double>(rope, "factor", source) : io::get_or<double>(rope, "factor", 1, source);
  if (!(result.factor >= 1 && result.factor <= kRopeFactorRange.max)) {
    throw data_error("{}: {}.factor is {}; it must be from 1 to {:g}", source, key, result.factor,
                     kRopeFactorRange.max);
  }
  if (result.type == RopeType::kLinear || result.type == RopeType::kProportional) return result;

  const char* const original_positions_key = "original_max_position_embeddings";
  const int64_t max_positions = read_size(config, "max_position_embeddings", 2048, kMaxPositions, source);
  result.original_max_positions = static_cast<double>(read_size(
      config, original_positions_key,
      read_size(rope, original_positions_key, max_positions, kMaxPositions, fmt::format("{} ({})", source, key)),
      kMaxPositions, source));
  if (result.type == RopeType::kLlama3) {
    result.low_freq_factor = io::get<double>(rope, "low_freq_factor", source);
    result.high_freq_factor = io::get<double>(rope, "high_freq_factor", source);
    if (result.low_freq_factor <= 0 || result.high_freq_factor <= result.low_freq_factor) {
      throw config_error("{}: {}.high_freq_factor {} must be above low_freq_factor {}, which must be above 0", source,
                         key, result.high_freq_factor, result.low_freq_factor);
    }
    return result;
  }
  result.beta_fast = read_number(rope, "beta_fast", result.beta_fast, kYarnBetaRange, source);
  result.beta_slow = read_number(rope, "beta_slow", result.beta_slow, kYarnBetaRange, source);
  result.truncate = io::get_or<bool>(rope, "truncate", result.truncate, source);
  result.scale = read_yarn_attention_factor(rope, result.factor, source);
  return result;
}

at::Tensor RopeConfig::compute_frequencies(int64_t head_dim) const {
  const int64_t rotary_dim = compute_rotary_dim(head_dim);
  switch (type) {
    case RopeType::kDefault:
      return nn::compute_inv_freq(rotary_dim, theta);
    case RopeType::kLinear:
      return nn::compute_inv_freq(rotary_dim, theta).div_(factor);
    case RopeType::kLlama3:
      return compute_llama3_frequencies(nn::compute_inv_freq(rotary_dim, theta), *this);
    case RopeType::kProportional:
      return compute_proportional_frequencies(*this, head_dim);
    case RopeType::kYarn:
      return compute_yarn_frequencies(*this, rotary_dim);
  }
  throw InternalError("unknown rope type");
}

at::Tensor RopeConfig::make_pair_axes() const {
  if (is_mrope_interleaved) {
    at::Tensor axes = at::zeros({std::accumulate(sections.begin(), sections.end(), int64_t{0})}, at::kLong);
    for (int64_t axis = 1; axis < std::ssize(sections); ++axis) {
      const int64_t end = data::kNumPositionAxes * sections[static_cast<size_t>(axis)];
      axes.slice(0, axis, end, data::kNumPositionAxes).fill_(axis);
    }
    return axes;
  }
  std::vector<at::Tensor> axes{at::empty({0}, at::kLong)};
  for (size_t i = 0; i < sections.size(); ++i) {
    axes.push_back(at::full({sections[i]}, static_cast<int64_t>(i) % data::kNumPositionAxes, at::kLong));
  }
  return at::cat(axes);
}

}  // namespace vlmtrain::models
