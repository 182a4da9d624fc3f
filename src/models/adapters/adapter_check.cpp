#include "models/adapters/adapter_check.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "models/adapters/adapter_format.h"
#include "models/adapters/lora_targets.h"
#include "models/checkpoints/load_parameters.h"
#include "models/checkpoints/overflow.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/safetensors.h"

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
  throw_if_problems(fmt::format("{}: the adapter does not match the model; is it for another model?",
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
        "{}: contains {}, which would not be loaded with the adapter, so the model would differ; merge the adapter "
        "with the "
        "program that wrote it and use the result, or move the file out of the adapter's folder to ignore it",
        files.front().string(), match->description);
  }
  throw data_error(
      "{}: is a tensor file that is not part of a LoRA adapter ({} is); merge the adapter with the program that wrote "
      "it and use the result, or move an unrelated file out of the adapter's folder",
      files.front().string(), kAdapterWeightsName);
}

}  // namespace vlmtrain::models
