#include "vlmtrain/models/adapter.h"

#include <ATen/core/grad_mode.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <unordered_map>
#include <vector>

#include "models/adapters/adapter_check.h"
#include "models/adapters/adapter_config.h"
#include "models/adapters/adapter_format.h"
#include "models/checkpoints/auxiliary_files.h"
#include "models/checkpoints/load_weights.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/checkpoint.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/base_weights.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/checkpoint_contents.h"
#include "vlmtrain/nn/layers/linear.h"
#include "vlmtrain/nn/weights/weight_settings.h"

namespace vlmtrain::models {

namespace {

/// A base model on the meta device, and the modules that an adapter's tensors may belong to.
struct MetaBaseModel {
  std::unique_ptr<VisionLanguageModel> model;
  AdaptableModules modules;

  explicit MetaBaseModel(const std::filesystem::path& base)
      : model(build_model(base, at::kMeta, at::kFloat)), modules(*model, find_output_module(*model)) {}
};

/// Returns the model of `base`. If `base` is empty, uses base_model_name_or_path of the adapter in
/// `folder`; returns nothing if that is not a valid checkpoint.
std::optional<MetaBaseModel> build_meta_base_model(const std::filesystem::path& folder,
                                                   const std::filesystem::path& base) {
  if (!base.empty()) return MetaBaseModel(base);
  const auto config = io::read_json(folder / kAdapterConfigName);
  const auto base_path_entry = config.find("base_model_name_or_path");
  if (base_path_entry == config.end() || !base_path_entry->is_string()) return std::nullopt;
  try {
    return MetaBaseModel(base_path_entry->get<std::string>());
  } catch (const UserError&) {
    return std::nullopt;
  }
}

/// Resolves modules_to_save to the model's names. Adds embedding and output if the adapter has them
/// without naming them, which peft does when the vocabulary has grown (save_embedding_layers).
void resolve_modules_to_save(nn::LoraSettings& settings, const AdapterTensors& tensors, const AdapterConfig& config,
                             const MetaBaseModel& base, const std::filesystem::path& folder) {
  for (auto& module : settings.modules_to_save) module = base.modules.resolve_module_path(module);
  const VisionLanguageModel& model = *base.model;
  const nn::Parameter* const tied_embedding = find_tied_embedding(model);
  const std::string output = find_output_module(model);
  const std::string output_weight = output + ".weight";
  const auto has_tensor = [&](const std::string& weight) { return tensors.contains(weight); };
  if (tied_embedding != nullptr) {
    const bool saves_embedding_or_output =
        settings.matches_modules_to_save(tied_embedding->name) || settings.matches_modules_to_save(output_weight);
    // Like peft: without ensure_weight_tying, embedding and output have separate values.
    settings.unties_output = saves_embedding_or_output && !config.ensure_weight_tying;
    // peft may name either of the two tied modules.
    if (!settings.unties_output && (saves_embedding_or_output || has_tensor(tied_embedding->name)) &&
        !settings.matches_modules_to_save(tied_embedding->name)) {
      settings.modules_to_save.push_back(tied_embedding->name.substr(0, tied_embedding->name.rfind('.')));
    }
    if (!settings.unties_output) {
      std::erase_if(settings.modules_to_save, [&](const std::string& module) {
        return nn::is_under_module(output_weight, module) && !nn::is_under_module(tied_embedding->name, module);
      });
    }
  }
  for (const auto& parameter : model.parameters().all()) {
    const bool is_vocabulary_weight = parameter.is_embedding || parameter.name == output_weight;
    if (!is_vocabulary_weight || !has_tensor(parameter.name)) continue;
    if (!settings.matches_modules_to_save(parameter.name)) {
      settings.modules_to_save.push_back(parameter.name.substr(0, parameter.name.rfind('.')));
    }
    const auto& shape = tensors.info(parameter.name).shape;
    // The adapter was trained with a larger vocabulary than its base has.
    if (differs_only_in_rows(parameter, shape) && shape[0] > parameter.sizes()[0] &&
        parameter.sizes()[0] == model.output_weight().size(0)) {
      settings.vocabulary_rows = std::max(settings.vocabulary_rows, shape[0]);
    }
  }
  if (settings.vocabulary_rows > 0 && !std::filesystem::exists(folder / "tokenizer.json")) {
    throw data_error(
        "{}: the adapter has {} vocabulary rows and its base {}, but the folder has no tokenizer.json with the added "
        "tokens; copy the tokenizer used in training there",
        tensors.file().string(), settings.vocabulary_rows, model.output_weight().size(0));
  }
}

}  // namespace

nn::LoraSettings read_adapter_settings(const std::filesystem::path& folder, const std::filesystem::path& base) {
  const std::string source = (folder / kAdapterConfigName).string();
  const AdapterConfig config = read_adapter_config(folder);
  reject_unsupported_adapter_weights(folder);
  const auto meta_base = build_meta_base_model(folder, base);
  const AdaptableModules* const modules = meta_base ? &meta_base->modules : nullptr;
  const AdapterTensors tensors(folder, modules);
  nn::LoraSettings settings{.rank = config.rank,
                            .alpha = config.alpha,
                            .dropout = config.dropout,
                            .use_rslora = config.use_rslora,
                            .use_dora = config.use_dora,
                            .target_modules = tensors.list_adapted_module_paths(),
                            .modules_to_save = config.modules_to_save,
                            .adapter = folder};
  config.check_target_modules(settings.target_modules, modules, source);
  config.check_rank_and_alpha_patterns(settings.target_modules, source);
  if (settings.target_modules.empty()) {
    throw data_error("{}: has no tensor named {}….{}", (folder / kAdapterWeightsName).string(), kAdapterTensorPrefix,
                     kLoraASuffix);
  }
  if (meta_base) resolve_modules_to_save(settings, tensors, config, *meta_base, folder);
  return settings;
}

namespace {

enum class ValueCheck : uint8_t { kAllowNonFinite, kRequireFinite };

void load_adapter_tensors(VisionLanguageModel& model, const std::filesystem::path& folder, ValueCheck check) {
  const at::NoGradGuard no_gradients;
  const AdaptableModules modules(model, find_output_module(model));
  const AdapterTensors tensors(folder, &modules);
  check_adapter_tensors(model, tensors);
  if (check == ValueCheck::kRequireFinite) check_adapter_values(model, tensors);
  for (const auto& parameter : get_adapter_parameters(model)) {
    parameter.set_values(tensors.tensor(parameter.name));
    tensors.release(parameter.name);
  }
}

}  // namespace

void load_adapter(VisionLanguageModel& model, const std::filesystem::path& folder) {
  load_adapter_tensors(model, folder, ValueCheck::kAllowNonFinite);
}

LoadResult load_base_weights(VisionLanguageModel& model, const std::filesystem::path& folder, LoadSettings settings) {
  const auto& lora = model.parameters().lora();
  if (!lora || !lora->unties_output) return load_weights(model, folder, settings);
  const std::string output = find_output_module(model);
  settings.allow_missing.push_back(output);
  LoadResult load_result = load_weights(model, folder, settings);
  const auto is_output_weight = [&](const nn::Parameter& parameter) {
    return parameter.tensor.is_same(model.output_weight());
  };
  // A tied base stores no output projection, which load_weights() has initialized randomly.
  // Training of the adapter started with the embedding's values, so they are copied.
  if (std::erase_if(load_result.initialized_parameters, is_output_weight) == 0) return load_result;
  const at::NoGradGuard no_gradients;
  const auto& all_parameters = model.parameters().all();
  const auto embedding = std::ranges::find_if(all_parameters, [&](const nn::Parameter& parameter) {
    return parameter.is_embedding && parameter.sizes() == model.output_weight().sizes();
  });
  VLMTRAIN_CHECK(embedding != all_parameters.end(),
                 "a tied base has no embedding with the shape of its output projection");
  model.output_weight().detach().copy_(embedding->tensor.detach());
  return load_result;
}

void initialize_adapter(VisionLanguageModel& model, uint64_t seed) {
  std::unordered_map<std::string, nn::Parameter> weights;
  for (const auto& parameter : get_base_parameters(model)) weights.emplace(parameter.name, parameter);
  for (const auto& parameter : get_adapter_parameters(model)) {
    if (parameter.is_in_modules_to_save) continue;
    if (parameter.name.ends_with(kLoraMagnitudeSuffix)) {
      const std::string path = parameter.name.substr(0, parameter.name.size() - kLoraMagnitudeSuffix.size());
      parameter.tensor.detach().copy_(nn::compute_row_norms(weights.at(path + "weight").values()));
    } else {
      initialize_parameter(parameter, seed);
    }
  }
}

void save_adapter(const VisionLanguageModel& model, const std::filesystem::path& base,
                  const std::filesystem::path& out) {
  io::write_file(out / kAdapterConfigName, make_adapter_config(model, base));
  copy_auxiliary_files(base, out);
  io::NamedTensors tensors;
  for (const auto& parameter : get_adapter_parameters(model)) {
    tensors.emplace_back(std::string(kAdapterTensorPrefix) + parameter.name, parameter.tensor.detach());
  }
  if (saves_tied_output(model)) {
    tensors.emplace_back(make_tied_output_name(model), find_tied_embedding(model)->tensor.detach());
  }
  io::write_safetensors(out / kAdapterWeightsName, tensors);
}

std::unique_ptr<VisionLanguageModel> load_model(const std::filesystem::path& folder, at::Device device,
                                                at::ScalarType dtype, const std::filesystem::path& base) {
  if (!is_adapter(folder)) {
    auto model = build_model(folder, device, dtype);
    check_host_memory(*model, folder, memory::get_available_host_memory());
    load_weights(*model, folder);
    return model;
  }
  const auto checkpoint = find_adapter_base(folder, base);
  warn_on_base_fingerprint_mismatch(folder, checkpoint);
  nn::LoraSettings lora = read_adapter_settings(folder, checkpoint);
  lora.dropout = 0;
  auto model = build_model(checkpoint, device, dtype, lora);
  check_host_memory(*model, folder, memory::get_available_host_memory());
  load_base_weights(*model, checkpoint, make_base_load_settings(lora));
  load_adapter_tensors(*model, folder, ValueCheck::kRequireFinite);
  return model;
}

}  // namespace vlmtrain::models
