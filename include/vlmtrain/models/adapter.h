#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models {

// LoRA adapters in PEFT's layout (https://huggingface.co/docs/peft/developer_guides/checkpoint): a folder with
// adapter_config.json and adapter_model.safetensors, whose tensors are named base_model.model.PATH.lora_A.weight.

/// Whether `folder` holds an adapter rather than a whole checkpoint.
bool is_adapter(const std::filesystem::path& folder);

/// Returns the checkpoint that an adapter belongs to: `base`, or where that is empty its base_model_name_or_path.
/// Throws UserError (kBadData) where that is no folder of this machine, or holds no whole checkpoint: an adapter, a
/// run.
std::filesystem::path find_adapter_base(const std::filesystem::path& folder, const std::filesystem::path& base = {});

/// A checkpoint folder as the base of a model, and the adapter on it.
struct BaseAndAdapter {
  std::filesystem::path base;
  std::filesystem::path adapter;  ///< empty where the folder is a whole checkpoint
};

/// Returns what a folder is made of; `base` as above. Throws UserError: kUsage where a base is given with a whole
/// checkpoint, kBadData as find_adapter_base().
BaseAndAdapter resolve_base_and_adapter(const std::filesystem::path& folder, const std::filesystem::path& base);

/// Whether two folders hold the same checkpoint, as far as config.json and samples of the weight files show.
bool is_same_checkpoint(const std::filesystem::path& a, const std::filesystem::path& b);

/// Warns where an adapter is about to be used on `base` although it names another checkpoint, which is on this machine.
void warn_if_named_base_differs(const std::filesystem::path& adapter, const std::filesystem::path& base);

/// Returns what an adapter's model is built with. The targets are the paths of the Linears that its tensors are for,
/// whatever the patterns were. Names of older releases of transformers are resolved against `base`; where that is
/// empty, against the base that the adapter names, if it is there. Throws UserError (kBadData) for an adapter that is
/// not plain LoRA of whole Linears: another method, trained biases, ranks that differ, other weights next to it.
nn::LoraSettings read_adapter_settings(const std::filesystem::path& folder, const std::filesystem::path& base = {});

/// Copies an adapter's tensors into a model that was built with its settings, converted to the model's dtype. Throws
/// UserError (kBadData) that lists every difference.
void load_adapter(VisionLanguageModel& model, const std::filesystem::path& folder);

/// Copies the weights of `folder` into a model with LoRA as load_weights does. An output projection that the adapter
/// unties (LoraSettings::unties_output) starts with the embedding's values.
LoadResult load_base_weights(VisionLanguageModel& model, const std::filesystem::path& folder, LoadSettings settings);

/// Sets the adapters of a model to their initial values, with which its output is that of its base. REQUIRES: the base
/// weights are loaded.
void initialize_adapter(VisionLanguageModel& model, uint64_t seed);

/// Writes the adapters and the modules_to_save of a model with LoRA, in its dtype, into the existing folder `out`, with
/// tokenizer, processor and template files of its `base` checkpoint. PEFT loads it.
void save_adapter(const VisionLanguageModel& model, const std::filesystem::path& base,
                  const std::filesystem::path& out);

struct MergeSettings {
  std::filesystem::path base = {};                     ///< as find_adapter_base()
  std::optional<at::ScalarType> dtype = std::nullopt;  ///< of all weights; nothing: each as the base has it
};

/// What rounding did to a merge: of the weights that the adapter changes, in fp32, some are the base's again in the
/// type that they are written in.
struct MergeStats {
  int64_t num_changed = 0;    ///< elements that the adapter changes
  int64_t num_unchanged = 0;  ///< of these, with the base's value in what was written
};

/// Writes the checkpoint `out`, which must not exist or be empty: the base of an adapter with W + scale · B A in the
/// place of each W that the adapter is for, computed in fp32 and kept in W's dtype. All else is the base's, but for the
/// tokenizer, processor and template files that the adapter brings. modules_to_save take the place of the base's. Host
/// memory grows by the weights that change. Throws what load_model() throws, before anything is written, and UserError
/// (kBadData) where a merged value overflows its type.
MergeStats merge_adapter(const std::filesystem::path& adapter, const std::filesystem::path& out,
                         const MergeSettings& settings = {});

/// The model of a checkpoint folder with its weights, or of an adapter's folder with its base's and its own. Without
/// dropout. `base`: as find_adapter_base().
std::unique_ptr<VisionLanguageModel> load_model(const std::filesystem::path& folder, at::Device device,
                                                at::ScalarType dtype, const std::filesystem::path& base = {});

}  // namespace vlmtrain::models
