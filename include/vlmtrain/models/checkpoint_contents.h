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

namespace vlmtrain::models {

/// The settings of saving a run's weights. Frozen weights are saved bit by bit as in the base.
/// Trained weights are saved from their fp32 master weights in the base's dtype. Weights that the
/// base does not have, such as a new projector or LoRA's adapters, are saved in the dtype of most
/// of the base's elements.
struct SaveOptions {
  const BaseWeights* base;
  std::optional<at::ScalarType> dtype = std::nullopt;  ///< of all weights except frozen adapters; nothing: the base's
  std::map<std::string, at::Tensor> master_weights = {};  ///< fp32, by name, of trained parameters
};

/// Returns the dtype that a parameter is saved in.
at::ScalarType choose_save_dtype(const nn::Parameter& parameter, const SaveOptions& options);

/// A checkpoint or an adapter ready to be written, once, by any thread. Writing reads the trained
/// values given to it, frozen parameters of the model and files of the base.
struct CheckpointContents {
  std::vector<std::pair<std::string, std::string>> files;  ///< names and contents
  io::LazyTensors tensors;
  bool is_adapter = false;
  std::string base_fingerprint{};  ///< of an adapter's base (compute_base_fingerprint()); empty: not written

  /// Writes into the existing folder `out`. Throws as io/atomic.h.
  void write(const std::filesystem::path& out, int64_t max_shard_bytes) const;
};

/// Returns a checkpoint for transformers: weights as `options` says, and config.json, tokenizer,
/// processor and template files of the base, with the config's dtype set if options.dtype is.
/// Throws UserError (kUsage), which names `out`, if the model's weights are quantized.
CheckpointContents make_checkpoint_contents(const VisionLanguageModel& model, const SaveOptions& options,
                                            const std::filesystem::path& out);

/// Returns an adapter for peft: the adapters and modules_to_save of a model with LoRA, and the
/// base's tokenizer, processor and template files.
CheckpointContents make_adapter_contents(const VisionLanguageModel& model, const SaveOptions& options);

/// Writes make_checkpoint_contents() into the existing folder `out`.
void save_checkpoint(const VisionLanguageModel& model, const SaveOptions& options, const std::filesystem::path& out,
                     int64_t max_shard_bytes);

/// Writes make_adapter_contents() into the existing folder `out`.
void save_adapter(const VisionLanguageModel& model, const SaveOptions& options, const std::filesystem::path& out);

/// Restores frozen weights of a model loaded from `saved` to their values at the start of the run,
/// if they were saved in another dtype. The values are the base's, or the initial ones of `seed` if
/// the base has none.
void restore_frozen_weights(VisionLanguageModel& model, const std::filesystem::path& saved, const BaseWeights& base,
                            uint64_t seed);

}  // namespace vlmtrain::models
