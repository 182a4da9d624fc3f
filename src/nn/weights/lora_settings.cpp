#include "vlmtrain/nn/weights/lora_settings.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/nn/weights/name_pattern.h"

namespace vlmtrain::nn {

namespace {

/// Returns whether the last components of `path` are `suffix`.
bool has_path_suffix(const std::string& path, const std::string& suffix) {
  if (!path.ends_with(suffix)) return false;
  const size_t prefix_size = path.size() - suffix.size();
  return prefix_size == 0 || path[prefix_size - 1] == '.';
}

}  // namespace

double LoraSettings::scale() const {
  const auto rank_value = static_cast<double>(rank);
  return alpha / (use_rslora ? std::sqrt(rank_value) : rank_value);
}

bool LoraSettings::matches_modules_to_save(std::string_view parameter) const {
  return std::ranges::any_of(modules_to_save,
                             [&](const std::string& module) { return is_under_module(parameter, module); });
}

LoraTarget::LoraTarget(std::string pattern) : pattern_(std::move(pattern)) {
  if (pattern_ == "all-linear") {
    matches_ = [](const std::string&) { return true; };
  } else if (!is_regular_expression(pattern_)) {
    matches_ = [suffix = pattern_](const std::string& path) { return has_path_suffix(path, suffix); };
  } else {
    matches_ = make_regular_expression_matcher(std::string(keys::lora::kTargetModules), pattern_, "names of Linears");
  }
}

}  // namespace vlmtrain::nn
