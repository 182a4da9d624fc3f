#include "models/network/llama/rope.h"

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

#include "models/checkpoints/size_limits.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/data/sample.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/nn/rotary.h"

namespace vlmtrain::models {

namespace {

using nlohmann::json;

RopeType type_of(const std::string& name, const std::string& source, const char* key) {
  if (name == "default") return RopeType::kDefault;
  if (name == "linear") return RopeType::kLinear;
  if (name == "llama3") return RopeType::kLlama3;
  if (name == "yarn") return RopeType::kYarn;
  throw data_error("{}: {} of type {} is not supported; default, linear, llama3 and yarn are", source, key, name);
}

/// YaRN's attention temperature.
double yarn_scale(double factor, double weight) {
  return factor <= 1 ? 1.0 : 0.1 * weight * std::log(factor) + 1.0;
}

constexpr NumberRange kStretches{0, 1e6};
constexpr NumberRange kTemperatures{0, 1e6};
constexpr NumberRange kTurns{0, 1e6};

double read_yarn_scale(const json& rope, double factor, const std::string& source) {
  const double numerator = io::get_or<double>(rope, "mscale", 0, source);
  const double denominator = io::get_or<double>(rope, "mscale_all_dim", 0, source);
  const double computed = numerator != 0 && denominator != 0
                              ? yarn_scale(factor, numerator) / yarn_scale(factor, denominator)
                              : yarn_scale(factor, 1);
  return number_of(rope, "attention_factor", computed, kTemperatures, source);
}

at::Tensor llama3(const at::Tensor& plain, const RopeConfig& rope) {
  const double longest = rope.original_max_positions / rope.low_freq_factor;
  const double shortest = rope.original_max_positions / rope.high_freq_factor;
  const at::Tensor wavelength = 2 * std::numbers::pi / plain;
  const at::Tensor divided = at::where(wavelength > longest, plain / rope.factor, plain);
  const at::Tensor smooth = (rope.original_max_positions / wavelength - rope.low_freq_factor) /
                            (rope.high_freq_factor - rope.low_freq_factor);
  const at::Tensor between = (1 - smooth) * divided / rope.factor + smooth * divided;
  return at::where((wavelength >= shortest).logical_and_(wavelength <= longest), between, divided);
}

at::Tensor yarn(const RopeConfig& rope, int64_t head_dim) {
  const auto dimensions = static_cast<double>(head_dim);
  /// The pair that turns so many times over the pretraining's context.
  const auto pair_of = [&](double turns) {
    return dimensions * std::log(rope.original_max_positions / (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double first = pair_of(rope.beta_fast);
  double last = pair_of(rope.beta_slow);
  if (rope.truncate) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, dimensions - 1);
  if (first == last) last += 0.001;  // as transformers, against a division by zero
  const at::Tensor ramp = ((at::arange(head_dim / 2, at::kFloat) - first) / (last - first)).clamp_(0, 1);
  const at::Tensor unstretched = 1 - ramp;
  const at::Tensor periods = at::pow(rope.theta, at::arange(0, head_dim, 2, at::kFloat).div_(dimensions));
  const at::Tensor interpolated = (rope.factor * periods).reciprocal_();
  return interpolated * (1 - unstretched) + periods.reciprocal() * unstretched;
}

}  // namespace

RopeConfig RopeConfig::from_json(const json& config, const std::string& source) {
  RopeConfig result;
  result.theta = number_of(config, "rope_theta", result.theta, kRopeThetas, source);
  // transformers lets the older key count where both are there.
  const json scaling = section_of(config, "rope_scaling", source);
  const json parameters = section_of(config, "rope_parameters", source);
  const char* key = scaling.empty() ? "rope_parameters" : "rope_scaling";
  const json& rope = scaling.empty() ? parameters : scaling;
  if (rope.empty()) return result;
  result.theta = number_of(rope, "rope_theta", result.theta, kRopeThetas, fmt::format("{} ({})", source, key));
  const auto older_name = io::get_or<std::string>(rope, "type", "default", source);
  result.type = type_of(io::get_or<std::string>(rope, "rope_type", older_name, source), source, key);
  if (io::get_or<double>(rope, "partial_rotary_factor", 1, source) != 1) {
    throw data_error("{}: {}.partial_rotary_factor other than 1 is not supported", source, key);
  }
  if (result.type == RopeType::kDefault) return result;

  result.factor = io::get<double>(rope, "factor", source);
  if (!(result.factor >= 1 && result.factor <= kStretches.most)) {
    throw data_error("{}: {}.factor is {}; it is from 1 to {:g}", source, key, result.factor, kStretches.most);
  }
  if (result.type == RopeType::kLinear) return result;

  const char* const original = "original_max_position_embeddings";
  const int64_t longest = size_of(config, "max_position_embeddings", 2048, kMostPositions, source);
  result.original_max_positions = static_cast<double>(
      size_of(config, original, size_of(rope, original, longest, kMostPositions, fmt::format("{} ({})", source, key)),
              kMostPositions, source));
  if (result.type == RopeType::kLlama3) {
    result.low_freq_factor = io::get<double>(rope, "low_freq_factor", source);
    result.high_freq_factor = io::get<double>(rope, "high_freq_factor", source);
    if (result.low_freq_factor <= 0 || result.high_freq_factor <= result.low_freq_factor) {
      throw data_error("{}: {}.high_freq_factor {} is not above low_freq_factor {}, or that not above 0", source, key,
                       result.high_freq_factor, result.low_freq_factor);
    }
    return result;
  }
  result.beta_fast = number_of(rope, "beta_fast", result.beta_fast, kTurns, source);
  result.beta_slow = number_of(rope, "beta_slow", result.beta_slow, kTurns, source);
  result.truncate = io::get_or<bool>(rope, "truncate", result.truncate, source);
  result.scale = read_yarn_scale(rope, result.factor, source);
  return result;
}

at::Tensor RopeConfig::frequencies(int64_t head_dim) const {
  switch (type) {
    case RopeType::kDefault:
      return nn::rotary_frequencies(head_dim, theta);
    case RopeType::kLinear:
      return nn::rotary_frequencies(head_dim, theta).div_(factor);
    case RopeType::kLlama3:
      return llama3(nn::rotary_frequencies(head_dim, theta), *this);
    case RopeType::kYarn:
      return yarn(*this, head_dim);
  }
  throw InternalError("unknown rope type");
}

at::Tensor RopeConfig::axes_of_pairs() const {
  if (interleaved) {
    at::Tensor axes = at::zeros({std::accumulate(sections.begin(), sections.end(), int64_t{0})}, at::kLong);
    for (int64_t axis = 1; axis < std::ssize(sections); ++axis) {
      const int64_t end = data::kPositionAxes * sections[static_cast<size_t>(axis)];
      axes.slice(0, axis, end, data::kPositionAxes).fill_(axis);
    }
    return axes;
  }
  std::vector<at::Tensor> axes{at::empty({0}, at::kLong)};
  for (size_t i = 0; i < sections.size(); ++i) {
    axes.push_back(at::full({sections[i]}, static_cast<int64_t>(i) % data::kPositionAxes, at::kLong));
  }
  return at::cat(axes);
}

}  // namespace vlmtrain::models
