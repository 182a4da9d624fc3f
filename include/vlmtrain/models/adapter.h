#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/nn/weights/weight_settings.h"

namespace vlmtrain::models {

// LoRA adapters in peft's format (https://huggingface.co/docs/peft/developer_guides/checkpoint): a
// folder with adapter_config.json and adapter_model.safetensors, whose tensors are named
// base_model.model.PATH.lora_A.weight.

/// Returns whether `folder` holds an adapter rather than a full checkpoint.
bool is_adapter(const std::filesystem::path& folder);

/// Returns the checkpoint that an adapter belongs to: `base`, or the adapter's
/// base_model_name_or_path if `base` is empty, which is downloaded if it is a name on the Hub. Throws
/// UserError: kUsage if `base` is not a folder; kBadData if the result does not exist or is not a
/// full checkpoint; and as hub::fetch_model().
std::filesystem::path find_adapter_base(const std::filesystem::path& folder, const std::filesystem::path& base = {});

/// Returns true if find_adapter_base(adapter) needs no download. Throws UserError (kBadData) if
/// adapter_config.json is invalid.
bool has_local_base(const std::filesystem::path& adapter);

/// The folders of a base checkpoint and of the adapter that belongs to it.
struct BaseAndAdapterFolders {
  std::filesystem::path base;
  std::filesystem::path adapter;  ///< empty if the folder is a full checkpoint
};

/// Returns the base and the adapter of `folder`, which is an adapter or a full checkpoint. `base`
/// is as in find_adapter_base(). Throws UserError: kUsage if `base` is given for a full checkpoint;
/// kBadData for the same reasons as find_adapter_base().
BaseAndAdapterFolders resolve_base_and_adapter(const std::filesystem::path& folder, const std::filesystem::path& base);

/// Returns whether two folders hold the same checkpoint. Compares config.json and 256 KiB of each
/// `*.safetensors` file, so a change of a few values may go unnoticed.
bool are_equal_checkpoints(const std::filesystem::path& a, const std::filesystem::path& b);

/// Logs a warning if the adapter's base_model_name_or_path is an existing folder with another
/// checkpoint than `base`.
void warn_on_base_folder_mismatch(const std::filesystem::path& adapter, const std::filesystem::path& base);

/// Returns the LoRA settings to build an adapter's model with. The targets are the paths of the
/// Linears that its tensors belong to. Names from older transformers releases are mapped to the
/// names of the model in `base`. If `base` is empty, base_model_name_or_path is used; if that
/// folder does not exist, names are kept. Throws UserError (kBadData) if the adapter is neither
/// LoRA nor DoRA, has trained biases or differing ranks, or has other weight files.
nn::LoraSettings read_adapter_settings(const std::filesystem::path& folder, const std::filesystem::path& base = {});

/// Copies an adapter's tensors into a model built with read_adapter_settings(), converted to the
/// model's dtype. Infinite values and NaN are copied. Throws UserError (kBadData), which lists all
/// missing, unexpected and mismatched tensors.
void load_adapter(VisionLanguageModel& model, const std::filesystem::path& folder);

/// Loads the base checkpoint `folder` into a model with LoRA, like load_weights(). An output
/// projection that the adapter unties (LoraSettings::unties_output) starts with the embedding's
/// values, unless the base has a tensor for it.
LoadResult load_base_weights(VisionLanguageModel& model, const std::filesystem::path& folder, LoadSettings settings);

/// Initializes the adapters of a model so that its output equals the output of its base. Leaves
/// modules_to_save unchanged. REQUIRES: the base weights are loaded.
void initialize_adapter(VisionLanguageModel& model, uint64_t seed);

/// Writes the adapters and modules_to_save of a model with LoRA, in the model's dtype, into the
/// existing folder `out`, with tokenizer, processor and template files of its `base` checkpoint.
/// peft can load the result.
void save_adapter(const VisionLanguageModel& model, const std::filesystem::path& base,
                  const std::filesystem::path& out);

/// The options of merge_adapter().
struct MergeSettings {
  std::filesystem::path base = {};                     ///< as in find_adapter_base()
  std::optional<at::ScalarType> dtype = std::nullopt;  ///< of all written weights; nullopt: the base's dtypes
};

/// The effect of rounding on a merge: some changed weights equal the base's again after rounding to
/// the output dtype.
struct MergeStats {
  int64_t num_changed_elements = 0;       ///< elements that the adapter changes in fp32
  int64_t num_rounded_away_elements = 0;  ///< those of num_changed_elements that rounding makes equal to the base's
};

/// Writes the merged checkpoint of an adapter to the folder `out`, which must not exist or must be
/// empty. Each adapted W becomes W + scale · B A, computed in fp32 and stored in W's dtype. Modules
/// of modules_to_save replace the base's; so do tokenizer, processor and template files of the
/// adapter. Memory holds one tensor at a time. Throws as load_model(), before anything is written,
/// and UserError (kBadData) if a merged value overflows its dtype. `out` does not exist after an
/// error.
MergeStats merge_adapter(const std::filesystem::path& adapter, const std::filesystem::path& out,
                         const MergeSettings& settings = {});

/// Returns a model with loaded weights. `folder` is a full checkpoint, or an adapter, which is
/// applied to its base without dropout. `base` is as in find_adapter_base(). Throws UserError:
/// kBadData as build_model(), load_weights() and read_adapter_settings(), and for infinite values
/// and NaN; kDoesNotFit if the weights exceed the available host memory.
std::unique_ptr<VisionLanguageModel> load_model(const std::filesystem::path& folder, at::Device device,
                                                at::ScalarType dtype, const std::filesystem::path& base = {});

}  // namespace vlmtrain::models
