#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <memory>

#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

// LoRA adapters in PEFT's layout (https://huggingface.co/docs/peft/developer_guides/checkpoint): a folder with
// adapter_config.json and adapter_model.safetensors, whose tensors are named base_model.model.PATH.lora_A.weight.

/// Whether `folder` holds an adapter rather than a whole checkpoint.
bool is_adapter(const std::filesystem::path& folder);

/// The checkpoint that an adapter belongs to: its base_model_name_or_path. Throws UserError (kBadData) where that is no
/// folder of this machine.
std::filesystem::path base_of_adapter(const std::filesystem::path& folder);

/// What an adapter's model is built with. The targets are the paths of the Linears that its tensors are for, whatever
/// the patterns were. Throws UserError (kBadData) for an adapter that is not plain LoRA of whole Linears: another
/// method, trained biases, ranks that differ.
nn::LoraSettings read_adapter_settings(const std::filesystem::path& folder);

/// Copies an adapter's tensors into a model that was built with its settings, converted to the model's dtype. Strict,
/// as load_weights.
void load_adapter(VisionLanguageModel& model, const std::filesystem::path& folder);

/// Sets the adapters of a model to their initial values, with which its output is that of its base. REQUIRES: the base
/// weights are loaded.
void initialize_adapter(VisionLanguageModel& model, uint64_t seed);

/// Writes the adapters and the modules_to_save of a model with LoRA, in its dtype, into the existing folder `out`, with
/// tokenizer, processor and template files of its `base` checkpoint. PEFT loads it.
void save_adapter(const VisionLanguageModel& model, const std::filesystem::path& base,
                  const std::filesystem::path& out);

/// Writes the checkpoint `out`, which must not exist or be empty: the base of an adapter with W + scale · B A in the
/// place of each W that the adapter is for, computed in fp32 and kept in W's dtype. All else is the base's.
/// modules_to_save take the place of the base's. Host memory grows by the weights that change.
void merge_adapter(const std::filesystem::path& adapter, const std::filesystem::path& out);

/// The model of a checkpoint folder with its weights, or of an adapter's folder with its base's and its own. Without
/// dropout.
std::unique_ptr<VisionLanguageModel> load_model(const std::filesystem::path& folder, at::Device device,
                                                at::ScalarType dtype);

}  // namespace vlmtrain::models
