#include "models/checkpoints/computed_tables.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/pow.h>

#include <algorithm>
#include <string>
#include <vector>

namespace vlmtrain::models {

namespace {

/// Numbers whose key names a theta, in any section.
void collect_thetas(const nlohmann::json& config, std::vector<double>& thetas) {
  for (const auto& [key, value] : config.items()) {
    if (value.is_object()) collect_thetas(value, thetas);
    const bool is_theta = key.ends_with("theta") || key == "lm_re_base" || key == "rope_local_base_freq";
    if (is_theta && value.is_number()) thetas.push_back(value.get<double>());
  }
}

}  // namespace

bool is_close(const at::Tensor& stored, const at::Tensor& computed) {
  const double tolerance = stored.scalar_type() == at::kBFloat16 ? 1e-2
                           : stored.scalar_type() == at::kHalf   ? 2e-3
                                                                 : 1e-5;
  return stored.sizes() == computed.sizes() &&
         at::allclose(stored.to(at::kDouble), computed.to(at::kDouble), tolerance, 1e-6);
}

bool is_default_table(std::string_view name, const at::Tensor& table, const nlohmann::json& config) {
  const at::Tensor flat = table.flatten();
  if (name.ends_with("position_ids")) {
    return at::equal(flat.to(at::kLong), at::arange(flat.numel(), at::kLong));
  }
  std::vector<double> thetas{10000};
  if (config.is_object()) collect_thetas(config, thetas);
  const at::Tensor exponents = at::arange(flat.numel(), at::kDouble) / static_cast<double>(-flat.numel());
  return std::ranges::any_of(thetas, [&](double theta) { return is_close(flat, at::pow(theta, exponents)); });
}

}  // namespace vlmtrain::models
