#include "vlmtrain/nn/lora_settings.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "nn/path_pattern.h"

namespace vlmtrain::nn {

namespace {

bool has_path_suffix(const std::string& path, const std::string& names) {
  if (!path.ends_with(names)) return false;
  const size_t prefix_size = path.size() - names.size();
  return prefix_size == 0 || path[prefix_size - 1] == '.';
}

}  // namespace

double LoraSettings::scale() const {
  const auto rank_value = static_cast<double>(rank);
  return alpha / (use_rslora ? std::sqrt(rank_value) : rank_value);
}

bool LoraSettings::is_module_to_save(std::string_view parameter) const {
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

LoraTarget::LoraTarget(std::string text) : text_(std::move(text)) {
  if (text_ == "all-linear") {
    matches_ = [](const std::string&) { return true; };
  } else if (text_.find_first_of("*+?()[]{}|\\^$") == std::string::npos) {
    matches_ = [names = text_](const std::string& path) { return has_path_suffix(path, names); };
  } else {
    matches_ = [pattern = PathPattern("lora.target_modules", text_)](const std::string& path) {
      return pattern.matches(path);
    };
  }
}

}  // namespace vlmtrain::nn
