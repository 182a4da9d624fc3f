#include "models/checkpoints/load_weights.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "models/checkpoints/load_parameters.h"
#include "models/checkpoints/quantized_weights.h"
#include "models/checkpoints/read_model_config.h"
#include "models/checkpoints/tensor_names.h"
#include "models/checkpoints/tied_output.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/checkpoint_info.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/weights/name_pattern.h"

namespace vlmtrain::models {

namespace {

bool is_under_any_module(std::string_view name, const std::vector<std::string>& modules) {
  return std::ranges::any_of(modules, [&](const std::string& module) { return nn::is_under_module(name, module); });
}

LoadTolerance make_load_tolerance(const VisionLanguageModel& model, const LoadSettings& settings) {
  const int64_t vocab_size = model.output_weight().size(0);
  return {.may_be_missing =
              [&settings](std::string_view name) { return is_under_any_module(name, settings.allow_missing); },
          .may_be_unused =
              [&settings](std::string_view name) {
                return may_be_unused(name) || is_under_any_module(name, settings.allow_unexpected);
              },
          .may_resize_rows =
              [&settings, vocab_size](const nn::Parameter& parameter) {
                return settings.allow_embedding_resize && parameter.component == nn::Component::kLanguageModel &&
                       parameter.tensor.size(0) == vocab_size;
              },
          .may_be_non_finite = settings.allow_non_finite_values};
}

/// Throws UserError if a tied embedding is stored under the name of the output projection.
/// safetensors' save_model keeps the alphabetically first of two tied tensors, and only nanoVLM
/// names its tensors accordingly.
void reject_swapped_embedding(const nn::Parameter& parameter, const io::CheckpointTensors& weights,
                              const std::filesystem::path& folder) {
  if (!parameter.is_embedding || weights.contains(parameter.name) ||
      parameter.component != nn::Component::kLanguageModel) {
    return;
  }
  const auto output = std::ranges::find_if(weights.names(), is_output_projection);
  if (output == weights.names().end()) return;
  throw data_error("{}: has {} and not {}; if the two are tied, rename it to {}, as transformers does", folder.string(),
                   *output, parameter.name, parameter.name);
}

/// Throws UserError for names that differ systematically. `checkpoint_parameters` have their
/// checkpoint names; `model_parameter_names` are their names in the model.
void check_parameter_names(const std::vector<nn::Parameter>& checkpoint_parameters,
                           const std::vector<std::string>& model_parameter_names, const io::CheckpointTensors& weights,
                           const VisionLanguageModel& model, const std::filesystem::path& folder,
                           const LoadSettings& settings) {
  std::vector<std::string> expected;
  bool may_all_be_missing = true;
  for (const auto& parameter : checkpoint_parameters) {
    expected.push_back(parameter.name);
    may_all_be_missing &=
        weights.contains(parameter.name) || is_under_any_module(parameter.name, settings.allow_missing);
  }
  reject_mismatched_names(folder.string(), expected, model_parameter_names, weights.names(), may_all_be_missing);
  if (!has_tied_output(model)) return;
  for (const auto& parameter : checkpoint_parameters) {
    if (!is_under_any_module(parameter.name, settings.allow_missing))
      reject_swapped_embedding(parameter, weights, folder);
  }
}

/// Throws UserError if the stored output projection of a tied model differs from the embedding.
/// They were equal in build_model(), so the files have changed.
void check_tied_outputs(const std::vector<std::string>& unused_tensor_names, const io::CheckpointTensors& weights,
                        const std::filesystem::path& folder) {
  for (const auto& name : unused_tensor_names) {
    const auto tensors = find_output_tensor_names(weights.names());
    if (!is_output_projection(name) || !tensors || are_output_tensors_equal(*tensors, folder)) continue;
    throw data_error("{}: {} differs from {}, but they were equal when the model was built; start again",
                     folder.string(), name, tensors->embedding);
  }
}

/// Warns about stored tables that differ from the tables computed from the config. The computed
/// tables are used.
void warn_about_ignored_tables(const std::vector<std::string>& unused_tensor_names,
                               const io::CheckpointTensors& weights, const VisionLanguageModel& model,
                               const std::filesystem::path& folder) {
  io::NamedTensors computed_tables;
  model.add_computed_tables(computed_tables);
  const auto config = read_model_config(folder);
  for (const auto& name : unused_tensor_names) {
    if (!is_computed_table(name)) continue;
    const auto it = std::ranges::find(computed_tables, name, [](const auto& entry) { return entry.first; });
    const at::Tensor table = weights.tensor(name);
    const bool is_equal =
        it != computed_tables.end() ? are_close(table, it->second) : is_default_table(name, table, config);
    if (is_equal) continue;
    spdlog::warn("{}: {} differs from the values computed from config.json; the computed ones are used",
                 folder.string(), name);
  }
}

}  // namespace

void check_host_memory(const VisionLanguageModel& model, const std::filesystem::path& folder,
                       const memory::AvailableHostMemory& available) {
  int64_t bytes = 0;
  for (const auto& parameter : model.parameters().all()) {
    if (!parameter.tensor.is_cpu()) continue;
    const int64_t num_shards = parameter.sharded_block ? model.parameters().shard().count : 1;
    bytes += static_cast<int64_t>(parameter.tensor.nbytes()) / num_shards;
  }
  if (bytes <= available.bytes) return;
  throw UserError(
      ExitCode::kDoesNotFit,
      fmt::format("{} does not fit in host memory: its weights take {:.2f} GB, and {:.2f} GB are available ({}); "
                  "request more (SLURM's --mem), or compute in 16 bits (bf16)",
                  folder.string(), to_gigabytes(bytes), to_gigabytes(available.bytes), available.limit_source));
}

LoadResult load_weights(VisionLanguageModel& model, const std::filesystem::path& folder, const LoadSettings& settings) {
  const at::NoGradGuard no_gradients;
  std::vector<nn::Parameter> checkpoint_parameters;
  std::map<std::filesystem::path, std::vector<nn::Parameter>> external_parameters;
  std::vector<std::string> model_parameter_names;
  for (nn::Parameter parameter : get_base_parameters(model)) {
    const auto external_weight = model.find_external_weight(parameter.name);
    if (!external_weight) model_parameter_names.push_back(parameter.name);
    parameter.name = external_weight ? external_weight->name : model.get_checkpoint_tensor_name(parameter.name);
    (external_weight ? external_parameters[external_weight->folder] : checkpoint_parameters)
        .push_back(std::move(parameter));
  }
  reject_quantized_weights(read_model_config(folder), folder);
  const io::CheckpointTensors weights(folder);
  check_parameter_names(checkpoint_parameters, model_parameter_names, weights, model, folder, settings);
  for (const auto& warning : list_checkpoint_warnings(folder)) spdlog::warn("{}", warning);
  const auto differences = load_parameters(
      checkpoint_parameters, weights, "", make_load_tolerance(model, settings),
      fmt::format("{}: the weights do not match config.json; to train anyway, set {} (random initialization), {} or {}",
                  folder.string(), keys::model::kAllowMissing, keys::model::kAllowUnexpected,
                  keys::model::kResizeEmbeddings));
  check_tied_outputs(differences.unused_tensor_names, weights, folder);
  warn_about_ignored_tables(differences.unused_tensor_names, weights, model, folder);
  for (const auto& [source, parameters] : external_parameters) {
    load_parameters(parameters, io::CheckpointTensors(source), "",
                    {.may_be_unused = [](std::string_view) { return true; }},
                    fmt::format("{}: the weights do not match {}", source.string(), (folder / "config.json").string()));
  }
  for (const auto& parameter : differences.missing_parameters) initialize_parameter(parameter, settings.seed);
  LoadResult result{differences.missing_parameters, differences.resized_parameters, {}};
  std::ranges::copy_if(differences.unused_tensor_names, std::back_inserter(result.skipped_tensor_names),
                       [](const std::string& name) { return !may_be_unused(name); });
  return result;
}

}  // namespace vlmtrain::models
