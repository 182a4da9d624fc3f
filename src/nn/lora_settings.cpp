#include "vlmtrain/nn/lora_settings.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "nn/path_pattern.h"

namespace vlmtrain::nn {

namespace {

bool ends_in_names(const std::string& path, const std::string& names) {
  if (!path.ends_with(names)) return false;
  const size_t before = path.size() - names.size();
  return before == 0 || path[before - 1] == '.';
}

}  // namespace

double LoraSettings::scale() const {
  const auto width = static_cast<double>(rank);
  return alpha / (use_rslora ? std::sqrt(width) : width);
}

bool LoraSettings::saves(std::string_view parameter) const {
  return std::ranges::any_of(modules_to_save,
                             [&](const std::string& module) { return lies_within(parameter, module); });
}

bool lies_within(std::string_view path, std::string_view module) {
  if (module.empty()) return false;
  for (size_t at = path.find(module); at != std::string_view::npos; at = path.find(module, at + 1)) {
    const size_t end = at + module.size();
    if ((at == 0 || path[at - 1] == '.') && (end == path.size() || path[end] == '.')) return true;
  }
  return false;
}

LoraTarget::LoraTarget(std::string text) : text_(std::move(text)) {
  if (text_ == "all-linear") {
    matches_ = [](const std::string&) { return true; };
  } else if (text_.find_first_of("*+?()[]{}|\\^$") == std::string::npos) {
    matches_ = [names = text_](const std::string& path) { return ends_in_names(path, names); };
  } else {
    matches_ = [pattern = PathPattern("lora.target_modules", text_)](const std::string& path) {
      return pattern.matches(path);
    };
  }
}

}  // namespace vlmtrain::nn
