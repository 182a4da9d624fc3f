#include "models/adapters/lora_targets.h"

#include <fmt/ranges.h>

#include <set>
#include <string>
#include <vector>

#include "models/adapters/output_module.h"
#include "models/checkpoints/load_parameters.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/options.h"

namespace vlmtrain::models {

namespace {

/// The modules of a store's parameters, those of numbered blocks left out: `model.connector`, `lm_head`.
std::vector<std::string> module_names(const nn::ParameterStore& store) {
  std::set<std::string> names;
  for (const auto& parameter : store.all()) {
    const bool is_numbered = parameter.name.find_first_of("0123456789") != std::string::npos;
    if (!is_numbered && !parameter.is_adapter) names.insert(parameter.name.substr(0, parameter.name.rfind('.')));
  }
  return {names.begin(), names.end()};
}

/// The entries of modules_to_save that no parameter follows from. The output projection that is the embedding is no
/// parameter, and trained where the embedding is. Throws UserError (kUsage) where it is named alone.
std::vector<std::string> unknown_modules_to_save(const VisionLanguageModel& model,
                                                 const std::filesystem::path& folder) {
  auto unknown = model.parameters().saved_modules_without_parameter();
  const nn::Parameter* const embedding = tied_embedding(model);
  if (embedding == nullptr) return unknown;
  const std::string output = output_module(model);
  const bool names_output =
      std::erase_if(unknown, [&](const std::string& module) { return nn::lies_within(output, module); }) > 0;
  if (names_output && !embedding->in_modules_to_save) {
    throw usage_error(
        "lora.modules_to_save: {} of {} is its embedding (tie_word_embeddings), so that both would be trained; name "
        "embed_tokens, which trains the two as one",
        output, folder.string());
  }
  return unknown;
}

}  // namespace

void check_lora_targets(const VisionLanguageModel& model, const std::filesystem::path& folder) {
  const nn::ParameterStore& store = model.parameters();
  if (!store.lora()) return;
  const auto& lora = *store.lora();
  if (const auto unknown = unknown_modules_to_save(model, folder); !unknown.empty()) {
    throw lora.adapter.empty()
        ? usage_error("lora.modules_to_save: no module of {} is {}; its modules are {}", folder.string(),
                      fmt::join(unknown, ", "), fmt::join(shortened(module_names(store)), ", "))
        : data_error(
              "{}: holds the modules {}, and {} has none of that name; is it an adapter "
              "for another model?",
              lora.adapter.string(), fmt::join(unknown, ", "), folder.string());
  }
  const auto unmatched = store.targets_without_linear();
  if (unmatched.empty()) return;
  if (!lora.adapter.empty()) {
    throw data_error("{}: adapts {}, and {} has no such Linear; is it an adapter for another model?",
                     lora.adapter.string(), fmt::join(shortened(unmatched), ", "), folder.string());
  }
  std::set<std::string> last_names;
  for (const auto& linear : store.linears()) last_names.insert(linear.path.substr(linear.path.rfind('.') + 1));
  std::vector<std::string> problems;
  for (const auto& target : unmatched) {
    const auto near = nearest(target, {last_names.begin(), last_names.end()});
    problems.push_back(target + (near && *near != target ? fmt::format(" (did you mean {}?)", *near) : ""));
  }
  throw usage_error("lora.target_modules: no Linear of {}{} for {}. There are {}, at paths such as {}", folder.string(),
                    lora.left_out.empty() ? "" : " outside the frozen parts", fmt::join(problems, ", "),
                    fmt::join(last_names, ", "), store.linears().back().path);
}

}  // namespace vlmtrain::models
