#include "train/trained_parts.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace vlmtrain::train {

namespace {

const std::pair<nn::Component, const char*> kParts[]{{nn::Component::kVisionTower, "the vision tower"},
                                                     {nn::Component::kProjector, "the projector"},
                                                     {nn::Component::kLanguageModel, "the language model"},
                                                     {nn::Component::kMaskEncoder, "the mask encoder"},
                                                     {nn::Component::kMaskDecoder, "the mask decoder"}};

bool trains(const nn::ParameterStore& parameters, nn::Component component) {
  return std::ranges::any_of(parameters.all(), [component](const nn::Parameter& parameter) {
    return parameter.component == component && parameter.tensor.requires_grad();
  });
}

}  // namespace

std::string trained_parts(const nn::ParameterStore& parameters) {
  std::vector<std::string> parts;
  for (const auto& [component, name] : kParts) {
    if (trains(parameters, component)) parts.emplace_back(name);
  }
  std::string text;
  for (size_t i = 0; i < parts.size(); ++i) {
    text += (i == 0 ? "" : i + 1 == parts.size() ? " and " : ", ") + parts[i];
  }
  return text;
}

bool trains_media_parts_alone(const nn::ParameterStore& parameters) {
  return !trains(parameters, nn::Component::kLanguageModel);
}

}  // namespace vlmtrain::train
