#include "models/adapters/lora_targets.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <string>
#include <vector>

#include "models/adapters/adapter_format.h"
#include "models/checkpoints/load_parameters.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/options.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/weights/name_pattern.h"

namespace vlmtrain::models {

namespace {

/// Returns the parameter whose tensor is the output projection: its own weight or a tied embedding.
const nn::Parameter* find_output_parameter(const VisionLanguageModel& model) {
  const auto& all = model.parameters().all();
  const at::Tensor& output = model.output_weight();
  const auto it =
      std::ranges::find_if(all, [&](const nn::Parameter& parameter) { return parameter.tensor.is_same(output); });
  return it == all.end() ? nullptr : &*it;
}

/// Returns the modules of a store's parameters outside of numbered blocks: `model.connector`,
/// `lm_head`.
std::vector<std::string> list_module_names(const nn::ParameterStore& store) {
  std::set<std::string> names;
  for (const auto& parameter : store.all()) {
    const bool is_numbered = parameter.name.find_first_of("0123456789") != std::string::npos;
    if (!is_numbered && !parameter.is_adapter) names.insert(parameter.name.substr(0, parameter.name.rfind('.')));
  }
  return {names.begin(), names.end()};
}

/// Returns the entries of modules_to_save that match no parameter. Throws UserError (kUsage) if an
/// entry is the output projection of a tied model and the embedding is not listed, since the two
/// can only be trained together.
std::vector<std::string> find_unknown_modules_to_save(const VisionLanguageModel& model,
                                                      const std::filesystem::path& folder) {
  auto unknown_modules = model.parameters().find_unmatched_modules_to_save();
  const nn::Parameter* const embedding = find_tied_embedding(model);
  if (embedding == nullptr) return unknown_modules;
  const std::string output = find_output_module(model);
  const bool saves_output = std::erase_if(unknown_modules, [&](const std::string& module) {
                              return nn::is_under_module(output, module);
                            }) > 0;
  if (saves_output && !embedding->is_in_modules_to_save) {
    throw usage_error(
        "{}: {} of {} is tied to its embedding (tie_word_embeddings), so both would be trained; give embed_tokens, "
        "which trains the tied weight",
        keys::lora::kModulesToSave, output, folder.string());
  }
  return unknown_modules;
}

}  // namespace

const nn::Parameter* find_tied_embedding(const VisionLanguageModel& model) {
  const nn::Parameter* const output = find_output_parameter(model);
  return output != nullptr && output->is_embedding ? output : nullptr;
}

std::string find_output_module(const VisionLanguageModel& model) {
  const nn::Parameter* const output = find_output_parameter(model);
  if (output == nullptr) return "lm_head";
  if (!output->is_embedding) return output->name.substr(0, output->name.rfind('.'));
  // nanoVLM's head is inside its decoder.
  return output->name.starts_with("decoder.") ? "decoder.head" : "lm_head";
}

void check_lora_targets(const VisionLanguageModel& model, const std::filesystem::path& folder) {
  const nn::ParameterStore& store = model.parameters();
  if (!store.lora()) return;
  const auto& lora = *store.lora();
  if (const auto unknown_modules = find_unknown_modules_to_save(model, folder); !unknown_modules.empty()) {
    throw lora.adapter.empty()
        ? usage_error("{}: {} has no module {}; its modules are {}", keys::lora::kModulesToSave, folder.string(),
                      fmt::join(unknown_modules, ", "), fmt::join(truncate_list(list_module_names(store)), ", "))
        : data_error("{}: contains the modules {}, which {} does not have; is it an adapter for another model?",
                     lora.adapter.string(), fmt::join(unknown_modules, ", "), folder.string());
  }
  const auto unmatched_targets = store.find_unmatched_targets();
  if (unmatched_targets.empty()) return;
  if (!lora.adapter.empty()) {
    throw data_error("{}: adapts {}, and {} has no such Linear; is it an adapter for another model?",
                     lora.adapter.string(), fmt::join(truncate_list(unmatched_targets), ", "), folder.string());
  }
  std::set<std::string> linear_names;
  for (const auto& linear : store.linears()) linear_names.insert(linear.path.substr(linear.path.rfind('.') + 1));
  std::vector<std::string> problems;
  for (const auto& target : unmatched_targets) {
    const auto suggestion = find_nearest_word(target, {linear_names.begin(), linear_names.end()});
    problems.push_back(target +
                       (suggestion && *suggestion != target ? fmt::format(" (did you mean {}?)", *suggestion) : ""));
  }
  throw usage_error("{}: no Linear of {}{} matches {}; available are {}, at paths such as {}",
                    keys::lora::kTargetModules, folder.string(),
                    lora.excluded_components.empty() ? "" : " outside the frozen parts", fmt::join(problems, ", "),
                    fmt::join(linear_names, ", "), store.linears().back().path);
}

bool saves_tied_output(const VisionLanguageModel& model) {
  const nn::Parameter* const embedding = find_tied_embedding(model);
  return embedding != nullptr && embedding->is_in_modules_to_save;
}

std::string make_tied_output_name(const VisionLanguageModel& model) {
  return fmt::format("{}{}.weight", kAdapterTensorPrefix, find_output_module(model));
}

}  // namespace vlmtrain::models
