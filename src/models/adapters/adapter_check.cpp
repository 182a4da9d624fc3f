#include "models/adapters/adapter_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "models/adapters/adapter_format.h"
#include "models/checkpoints/load_weights.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/options.h"
#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/weights/weight_settings.h"

namespace vlmtrain::models {

namespace {

/// Returns the problem with a tensor that matches no parameter of the adapter; empty if the tensor
/// is redundant.
std::string describe_unexpected_tensor(const std::string& name, const VisionLanguageModel& model,
                                       const AdapterTensors& tensors) {
  const std::string& file_name = tensors.stored_name(name);
  const nn::Parameter* const embedding = find_tied_embedding(model);
  if (embedding != nullptr && embedding->is_in_modules_to_save && name == find_output_module(model) + ".weight") {
    if (!tensors.contains(embedding->name) || at::equal(tensors.tensor(embedding->name), tensors.tensor(name))) {
      return "";
    }
    return fmt::format(
        "{} differs from {}, but the two are tied (ensure_weight_tying); set that to false if they were trained "
        "separately",
        file_name, tensors.stored_name(embedding->name));
  }
  if (name.find(".base_layer.") != std::string::npos || name.find(".original_module.") != std::string::npos) {
    return fmt::format(
        "unexpected: {} (a weight of the base; merge the adapter with the program that wrote it, or save it without "
        "the base weights)",
        file_name);
  }
  return "unexpected: " + file_name;
}

namespace fs = std::filesystem;

struct UnsupportedWeightFile {
  std::string_view name;         ///< name of the file or a prefix of it
  std::string_view description;  ///< content of the file, for messages
};

constexpr std::string_view kNonLoraWeightsDescription = "weights that were trained in addition to LoRA";

/// Weight files that other programs write next to an adapter and load with it.
constexpr std::array kUnsupportedWeightFiles{
    UnsupportedWeightFile{"non_lora_state_dict", kNonLoraWeightsDescription},  // Qwen2-VL-Finetune
    UnsupportedWeightFile{"non_lora_trainables", kNonLoraWeightsDescription},  // LLaVA
    UnsupportedWeightFile{"mm_projector", "a trained projector"},              // LLaVA
    UnsupportedWeightFile{"vit.", "a trained vision tower"},                   // ms-swift
    UnsupportedWeightFile{"vision_tower", "a trained vision tower"},           // LLaVA's forks
    UnsupportedWeightFile{"aligner.", "a trained projector"},                  // ms-swift
    UnsupportedWeightFile{"value_head", "a value head"},                       // LLaMA-Factory, TRL
    UnsupportedWeightFile{"v_head", "a value head"},
    UnsupportedWeightFile{"new_embeddings", "trained embeddings"},
    UnsupportedWeightFile{"embeddings.", "trained embeddings"},
    UnsupportedWeightFile{"model.safetensors", "weights of a whole model"},
    UnsupportedWeightFile{"model-", "weights of a whole model"},
    UnsupportedWeightFile{"pytorch_model", "weights of a whole model"},
    UnsupportedWeightFile{"consolidated", "weights of a whole model"},
};

/// Prefixes of the adapter's own weight files and of trainer files that hold no part of a model.
constexpr std::array<std::string_view, 9> kIgnoredFilePrefixes{"adapter_model.", "training_args.", "optimizer",
                                                               "scheduler",      "rng_state",      "random_states",
                                                               "scaler",         "lr_scheduler",   "trainer_state"};

bool may_hold_tensors(const fs::path& file) {
  constexpr std::array<std::string_view, 6> kTensorFileExtensions{".safetensors", ".bin",  ".pt",
                                                                  ".pth",         ".ckpt", ".npz"};
  return std::ranges::find(kTensorFileExtensions, file.extension().string()) != kTensorFileExtensions.end();
}

}  // namespace

std::vector<nn::Parameter> get_adapter_parameters(const VisionLanguageModel& model) {
  std::vector<nn::Parameter> result;
  for (const auto& parameter : model.parameters().all()) {
    if (parameter.is_saved_with_adapter()) result.push_back(parameter);
  }
  return result;
}

void check_adapter_tensors(const VisionLanguageModel& model, const AdapterTensors& tensors) {
  std::vector<std::string> problems;
  std::unordered_set<std::string> expected;
  for (const auto& parameter : get_adapter_parameters(model)) {
    expected.insert(parameter.name);
    if (!tensors.contains(parameter.name)) {
      problems.push_back(fmt::format("missing: {}{}", kAdapterTensorPrefix, parameter.name));
      continue;
    }
    const auto& info = tensors.info(parameter.name);
    for (auto problem :
         {describe_unsupported_dtype(parameter.name, info.dtype), describe_shape_mismatch(parameter, info.shape)}) {
      if (!problem.empty()) problems.push_back(std::move(problem));
    }
  }
  for (const auto& name : tensors.names()) {
    if (expected.contains(name)) continue;
    if (auto problem = describe_unexpected_tensor(name, model, tensors); !problem.empty())
      problems.push_back(std::move(problem));
  }
  throw_if_problems(
      fmt::format("{}: the adapter does not match the model; use an adapter that was trained on this base",
                  tensors.file().parent_path().string()),
      problems);
}

void check_adapter_values(const VisionLanguageModel& model, const AdapterTensors& tensors) {
  for (const auto& parameter : get_adapter_parameters(model)) {
    const at::Tensor values = tensors.tensor(parameter.name);
    const std::string file = tensors.file().string();
    if (!describe_first_non_finite_value(values).empty()) {
      throw data_error("{}: {} has non-finite values; use an earlier checkpoint of the adapter", file,
                       tensors.stored_name(parameter.name));
    }
    const at::ScalarType dtype = parameter.tensor.scalar_type();
    if (overflows(values, dtype)) {
      throw data_error("{}: {} has values up to {:.3g}, beyond the range of {}; compute in bf16 or fp32", file,
                       tensors.stored_name(parameter.name), values.abs().max().item<double>(),
                       io::to_safetensors_dtype(dtype));
    }
  }
}

void reject_unsupported_adapter_weights(const fs::path& folder) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    const auto matches_prefix = [&name](std::string_view prefix) { return name.starts_with(prefix); };
    // macOS stores attributes of NAME in "._NAME".
    if (name.starts_with("._") || !may_hold_tensors(entry->path())) continue;
    if (std::error_code ignored; !entry->is_regular_file(ignored)) continue;
    if (std::ranges::none_of(kIgnoredFilePrefixes, matches_prefix)) files.push_back(entry->path());
  }
  if (files.empty()) return;
  std::ranges::sort(files);
  const std::string name = files.front().filename().string();
  const auto match = std::ranges::find_if(kUnsupportedWeightFiles, [&](const UnsupportedWeightFile& unsupported_file) {
    return name.starts_with(unsupported_file.name);
  });
  if (match != kUnsupportedWeightFiles.end()) {
    throw data_error(
        "{}: contains {}, which is not loaded with the adapter; merge the adapter with the program that wrote it, or "
        "move the file away",
        files.front().string(), match->description);
  }
  throw data_error(
      "{}: is a tensor file that is not part of a LoRA adapter ({} is); merge the adapter with the program that wrote "
      "it, or move the file away",
      files.front().string(), kAdapterWeightsName);
}

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
        : data_error(
              "{}: contains the modules {}, which {} does not have; use an adapter that was trained on this base",
              lora.adapter.string(), fmt::join(unknown_modules, ", "), folder.string());
  }
  const auto unmatched_targets = store.find_unmatched_targets();
  if (unmatched_targets.empty()) return;
  if (!lora.adapter.empty()) {
    throw data_error("{}: adapts {}, but {} has no such Linear; use an adapter that was trained on this base",
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
