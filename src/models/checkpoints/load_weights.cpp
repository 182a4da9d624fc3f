#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "models/checkpoints/load_parameters.h"
#include "models/checkpoints/weights.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::models {

namespace {

/// What bitsandbytes wrote beside the bytes of its quantised weights.
void refuse_quantized(const io::CheckpointTensors& weights, const std::filesystem::path& folder) {
  for (const auto& name : weights.names()) {
    if (name.find(".quant_state.bitsandbytes__") == std::string::npos && !name.ends_with(".SCB")) continue;
    throw data_error(
        "{}: its weights are quantised by bitsandbytes already ({}); take the checkpoint that they were made of, in 16 "
        "or 32 bits, and set model.quantization=nf4 or int8",
        folder.string(), name);
  }
}

bool lies_within_any(std::string_view name, const std::vector<std::string>& modules) {
  return std::ranges::any_of(modules, [&](const std::string& module) { return nn::lies_within(name, module); });
}

Tolerance tolerance_of(const VisionLanguageModel& model, const LoadSettings& settings) {
  const int64_t vocabulary = model.output_weight().size(0);
  return {
      .may_be_missing = [&settings](std::string_view name) { return lies_within_any(name, settings.allow_missing); },
      .may_be_unused =
          [&settings](std::string_view name) {
            return may_be_unused(name) || lies_within_any(name, settings.allow_unexpected);
          },
      .may_have_other_rows =
          [&settings, vocabulary](const nn::Parameter& parameter) {
            return settings.resize_embeddings && parameter.component == nn::Component::kLanguageModel &&
                   parameter.tensor.size(0) == vocabulary;
          }};
}

}  // namespace

LoadedWeights load_weights(VisionLanguageModel& model, const std::filesystem::path& folder,
                           const LoadSettings& settings) {
  const at::NoGradGuard no_gradients;
  std::vector<nn::Parameter> own;
  std::map<std::filesystem::path, std::vector<nn::Parameter>> elsewhere;
  for (nn::Parameter parameter : own_parameters(model)) {
    const auto place = model.weight_elsewhere(parameter.name);
    parameter.name = place ? place->name : model.checkpoint_name(parameter.name);
    (place ? elsewhere[place->folder] : own).push_back(std::move(parameter));
  }
  const io::CheckpointTensors weights(folder);
  refuse_quantized(weights, folder);
  const auto differences = load_parameters(
      own, weights, "", tolerance_of(model, settings),
      fmt::format("{}: the weights do not match config.json; model.allow_missing, model.allow_unexpected and "
                  "model.resize_embeddings let a run begin all the same",
                  folder.string()));
  for (const auto& [place, parameters] : elsewhere) {
    load_parameters(parameters, io::CheckpointTensors(place), "",
                    {.may_be_unused = [](std::string_view) { return true; }},
                    fmt::format("{}: the weights do not match {}", place.string(), (folder / "config.json").string()));
  }
  for (const auto& parameter : differences.missing) draw_initial_values(parameter, settings.seed);
  LoadedWeights loaded{differences.missing, differences.resized, {}};
  std::ranges::copy_if(differences.unused, std::back_inserter(loaded.left_out),
                       [](const std::string& name) { return !may_be_unused(name); });
  return loaded;
}

}  // namespace vlmtrain::models
