#include "vlmtrain/nn/weights/lora_settings.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/regex.h"

namespace vlmtrain::nn {

namespace {

/// Returns a function that matches whole paths with `expression`. Throws UserError (kUsage) that
/// names `key` for an invalid expression; the function throws it for one that takes too long.
std::function<bool(const std::string&)> make_path_matcher(const std::string& key, const std::string& expression) {
  // Paths of modules have fewer than 100 characters, so that a reasonable expression stays far below
  // the default limits.
  std::optional<Regex> regex;
  try {
    regex.emplace(expression, RegexSettings{.matches_whole_text = true});
  } catch (const RegexError& error) {
    throw usage_error("{}: {} is an invalid regular expression ({}); correct it, or list names of Linears", key,
                      expression, error.what());
  }
  return [key, expression, regex = *std::move(regex)](const std::string& path) {
    try {
      return regex.search(path).has_value();
    } catch (const RegexError& error) {
      throw usage_error("{}: {} takes too long on {} ({}); simplify it, or list names of Linears", key, expression,
                        path, error.what());
    }
  };
}

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

bool is_under_module(std::string_view path, std::string_view module) {
  if (module.empty()) return false;
  for (size_t position = path.find(module); position != std::string_view::npos;
       position = path.find(module, position + 1)) {
    const size_t end = position + module.size();
    if ((position == 0 || path[position - 1] == '.') && (end == path.size() || path[end] == '.')) return true;
  }
  return false;
}

LoraTarget::LoraTarget(std::string pattern) : pattern_(std::move(pattern)) {
  if (pattern_ == "all-linear") {
    matches_ = [](const std::string&) { return true; };
  } else if (pattern_.find_first_of("*+?()[]{}|\\^$") == std::string::npos) {
    matches_ = [suffix = pattern_](const std::string& path) { return has_path_suffix(path, suffix); };
  } else {
    matches_ = make_path_matcher(std::string(keys::lora::kTargetModules), pattern_);
  }
}

}  // namespace vlmtrain::nn
