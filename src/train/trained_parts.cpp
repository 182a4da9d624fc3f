#include "train/trained_parts.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace vlmtrain::train {

namespace {

const std::pair<nn::Component, const char*> kComponentNames[]{{nn::Component::kVisionTower, "the vision tower"},
                                                              {nn::Component::kProjector, "the projector"},
                                                              {nn::Component::kLanguageModel, "the language model"},
                                                              {nn::Component::kMaskEncoder, "the mask encoder"},
                                                              {nn::Component::kMaskDecoder, "the mask decoder"}};

bool is_component_trained(const nn::ParameterStore& parameters, nn::Component component) {
  return std::ranges::any_of(parameters.all(), [component](const nn::Parameter& parameter) {
    return parameter.component == component && parameter.tensor.requires_grad();
  });
}

}  // namespace

std::string describe_trained_parts(const nn::ParameterStore& parameters) {
  std::vector<std::string> names;
  for (const auto& [component, name] : kComponentNames) {
    if (is_component_trained(parameters, component)) names.emplace_back(name);
  }
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == names.size() ? " and " : ", ") + names[i];
  }
  return text;
}

bool trains_only_media_parts(const nn::ParameterStore& parameters) {
  return !is_component_trained(parameters, nn::Component::kLanguageModel);
}

}  // namespace vlmtrain::train
