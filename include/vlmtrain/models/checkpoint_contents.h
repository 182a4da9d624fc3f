#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/io/safetensors.h"
#include "vlmtrain/models/base_weights.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/weights/split_values.h"

namespace vlmtrain::models {

/// Options for saving a run's weights. By default, frozen weights are saved bit by bit as in the
/// base. Trained weights are saved from their fp32 master weights in the base's dtype. Trained
/// weights that the base does not have, such as a new projector or LoRA's adapters, are saved in
/// BaseWeights::dtype().
struct CheckpointSaveOptions {
  const BaseWeights* base;                             ///< not null; must outlive the contents made from it
  std::optional<at::ScalarType> dtype = std::nullopt;  ///< of all weights except frozen adapters; nullopt: the base's
  /// Masters by parameter name. Trained parameters without an entry are saved from the model.
  std::map<std::string, nn::StoredTensor> master_weights = {};
};

/// Returns the dtype to save a parameter in, before a value that overflows in it widens it to fp32.
at::ScalarType choose_save_dtype(const nn::Parameter& parameter, const CheckpointSaveOptions& options);

/// A checkpoint or an adapter that is ready to be written. write() may be called once, by any
/// thread. The model and its base must outlive this object and must not change until write()
/// returns.
struct CheckpointContents {
  std::vector<std::pair<std::string, std::string>> files;  ///< names and contents
  io::LazyTensors tensors;
  bool is_adapter = false;
  std::string base_fingerprint{};  ///< of an adapter's base (compute_base_fingerprint()); empty: not written

  /// Writes into the existing folder `out`. Splits weight files of a checkpoint at
  /// `max_shard_bytes`. Throws UserError (kFailed) if the disk is full.
  void write(const std::filesystem::path& out, int64_t max_shard_bytes) const;
};

/// Returns a checkpoint for transformers: the weights as in CheckpointSaveOptions, and config.json,
/// tokenizer, processor and template files of the base, with the config's dtype set if
/// options.dtype is. `out` is only named in errors. Throws UserError (kUsage) if the model's
/// weights are quantized.
CheckpointContents make_checkpoint_contents(const VisionLanguageModel& model, const CheckpointSaveOptions& options,
                                            const std::filesystem::path& out);

/// Returns an adapter for peft: the adapters and modules_to_save of a model with LoRA, and the
/// base's tokenizer, processor and template files.
CheckpointContents make_adapter_contents(const VisionLanguageModel& model, const CheckpointSaveOptions& options);

/// Writes make_checkpoint_contents() into the existing folder `out`.
void save_checkpoint(const VisionLanguageModel& model, const CheckpointSaveOptions& options,
                     const std::filesystem::path& out, int64_t max_shard_bytes);

/// Writes make_adapter_contents() into the existing folder `out`.
void save_adapter(const VisionLanguageModel& model, const CheckpointSaveOptions& options,
                  const std::filesystem::path& out);

/// Restores frozen weights to their values at the start of the run, if the checkpoint `saved`,
/// which the model was loaded from, has them in another dtype. The values are the base's. Weights
/// that the base does not have are initialized with `seed` again.
void restore_frozen_weights(VisionLanguageModel& model, const std::filesystem::path& saved, const BaseWeights& base,
                            uint64_t seed);

}  // namespace vlmtrain::models
