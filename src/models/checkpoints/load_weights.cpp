#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "models/checkpoints/computed_tables.h"
#include "models/checkpoints/foreign_names.h"
#include "models/checkpoints/load_parameters.h"
#include "models/checkpoints/quantized_weights.h"
#include "models/checkpoints/read_model_config.h"
#include "models/checkpoints/tied_output.h"
#include "models/checkpoints/weights.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/checkpoint_remarks.h"

namespace vlmtrain::models {

namespace {

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
          },
      .may_be_non_finite = settings.allow_non_finite};
}

/// safetensors' save_model writes of two tied tensors the one whose name comes first. nanoVLM's layout is that one.
void refuse_swapped_output(const nn::Parameter& parameter, const io::CheckpointTensors& weights,
                           const std::filesystem::path& folder) {
  if (!parameter.is_embedding || weights.contains(parameter.name) ||
      parameter.component != nn::Component::kLanguageModel) {
    return;
  }
  const auto output = std::ranges::find_if(weights.names(), is_output_projection);
  if (output == weights.names().end()) return;
  throw data_error("{}: has {} and not {}; where the two are tied, rename it to {}, as transformers saves it",
                   folder.string(), *output, parameter.name, parameter.name);
}

/// `own` with the checkpoint's names, `own_names` their names in the model.
void check_names(const std::vector<nn::Parameter>& own, const std::vector<std::string>& own_names,
                 const io::CheckpointTensors& weights, const VisionLanguageModel& model,
                 const std::filesystem::path& folder, const LoadSettings& settings) {
  std::vector<std::string> wanted;
  bool may_be_missing = true;
  for (const auto& parameter : own) {
    wanted.push_back(parameter.name);
    may_be_missing &= weights.contains(parameter.name) || lies_within_any(parameter.name, settings.allow_missing);
  }
  refuse_foreign_names(folder.string(), wanted, own_names, weights.names(), may_be_missing);
  if (!ties_output(model)) return;
  for (const auto& parameter : own) {
    if (!lies_within_any(parameter.name, settings.allow_missing)) refuse_swapped_output(parameter, weights, folder);
  }
}

/// An output projection that the model does not have is the embedding once more (build_model).
void check_outputs(const std::vector<std::string>& unused, const io::CheckpointTensors& weights,
                   const std::filesystem::path& folder) {
  for (const auto& name : unused) {
    const auto tensors = find_output_tensors(weights.names());
    if (!is_output_projection(name) || !tensors || are_equal(*tensors, folder)) continue;
    throw data_error("{}: {} differs from {}, which was not so when the model was built; start again", folder.string(),
                     name, tensors->embedding);
  }
}

/// Tables that the config determines are computed, whatever the file has: one that differs is named.
void warn_of_tables(const std::vector<std::string>& unused, const io::CheckpointTensors& weights,
                    const VisionLanguageModel& model, const std::filesystem::path& folder) {
  io::NamedTensors computed;
  model.complete_weights(computed);
  const auto config = read_model_config(folder);
  for (const auto& name : unused) {
    if (!is_computed_table(name)) continue;
    const auto found = std::ranges::find(computed, name, [](const auto& entry) { return entry.first; });
    const at::Tensor table = weights.tensor(name);
    const bool is_same = found != computed.end() ? is_close(table, found->second) : is_usual_table(name, table, config);
    if (is_same) continue;
    spdlog::warn("{}: {} has other values than config.json determines; the computed ones are used", folder.string(),
                 name);
  }
}

}  // namespace

LoadedWeights load_weights(VisionLanguageModel& model, const std::filesystem::path& folder,
                           const LoadSettings& settings) {
  const at::NoGradGuard no_gradients;
  std::vector<nn::Parameter> own;
  std::map<std::filesystem::path, std::vector<nn::Parameter>> elsewhere;
  std::vector<std::string> own_names;
  for (nn::Parameter parameter : own_parameters(model)) {
    const auto place = model.weight_elsewhere(parameter.name);
    if (!place) own_names.push_back(parameter.name);
    parameter.name = place ? place->name : model.checkpoint_name(parameter.name);
    (place ? elsewhere[place->folder] : own).push_back(std::move(parameter));
  }
  refuse_quantized_weights(read_model_config(folder), folder);
  const io::CheckpointTensors weights(folder);
  check_names(own, own_names, weights, model, folder, settings);
  for (const auto& remark : checkpoint_remarks(folder)) spdlog::warn("{}", remark);
  const auto differences = load_parameters(
      own, weights, "", tolerance_of(model, settings),
      fmt::format("{}: the weights do not match config.json; model.allow_missing (what is missing starts at random), "
                  "model.allow_unexpected and model.resize_embeddings let a run begin all the same",
                  folder.string()));
  check_outputs(differences.unused, weights, folder);
  warn_of_tables(differences.unused, weights, model, folder);
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
