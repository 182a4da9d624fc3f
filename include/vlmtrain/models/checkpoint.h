#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/models/model.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {

/// Builds the model that `folder`/config.json describes, with uninitialised weights. Of weight files, if there are any,
/// only the names of their tensors are read. Throws UserError (kBadData) that names the known families for an unknown
/// one. With `lora` the Linears that it targets have adapters, and only these are trained; a target that matches no
/// Linear is a UserError that lists near names. `quantization` is of the frozen weights of all Linears; it asks for
/// `lora`. `shard` is this process's of the weights of blocks.
std::unique_ptr<VisionLanguageModel> build_model(const std::filesystem::path& folder, at::Device device,
                                                 at::ScalarType dtype,
                                                 const std::optional<nn::LoraSettings>& lora = std::nullopt,
                                                 nn::Quantization quantization = nn::Quantization::kNone,
                                                 const nn::Shard& shard = {});

/// In what a checkpoint may differ from the model that its config.json describes. Modules and tensors are given by
/// names of their path, as nn::is_under_module.
struct LoadSettings {
  std::vector<std::string> allow_missing{};     ///< these are drawn at random, as by initialize_weights
  std::vector<std::string> allow_unexpected{};  ///< these are left out
  /// Embedding and output may have other rows than the vocabulary; new rows are the mean of those that are there.
  bool resize_embeddings = false;
  uint64_t seed = 0;  ///< of what is drawn
  /// Values may be infinite or not numbers: of a run's own checkpoint, whose optimizer state has the fp32 values.
  bool allow_non_finite = false;
};

/// In what it did. Names are the checkpoint's.
struct LoadResult {
  std::vector<nn::Parameter> initialized;
  std::vector<nn::Parameter> resized;
  std::vector<std::string> skipped;
};

/// Copies the weights of `folder` (`*.safetensors`, single or sharded) into the model, converted to its dtype or
/// quantised, one tensor at a time. Strict:
/// missing and unexpected tensors and other shapes are listed in one UserError (kBadData), as far as
/// `settings` do not allow them. Weights that the model looks
/// for elsewhere (VisionLanguageModel::external_weight) come from there. Adapters are left as they are
/// (models/adapter.h), here and in the two functions below.
LoadResult load_weights(VisionLanguageModel& model, const std::filesystem::path& folder,
                        const LoadSettings& settings = {});

/// Draws the weights at random, each from its parameter's initial values: matrices and embeddings normal with variance
/// 1 / fan-in, less at the end of residual branches, biases 0, norms' weights 1. Small models learn from there several
/// times faster than from transformers' deviation of 0.02. The values depend on seed and name only.
void initialize_weights(VisionLanguageModel& model, uint64_t seed);

/// The processor of `folder`'s family; of an adapter's folder, its base's.
std::unique_ptr<Processor> load_processor(const std::filesystem::path& folder, const ProcessorSettings& settings);

/// Writes a checkpoint that transformers loads into the existing folder `out`: the weights in the model's dtype, and
/// config.json, tokenizer, processor and template files as `source` has them, with the config's dtype set. Throws
/// UserError (kUsage) for quantised weights.
void save_checkpoint(const VisionLanguageModel& model, const std::filesystem::path& source,
                     const std::filesystem::path& out, int64_t max_shard_bytes);

/// The models that `vlmtrain init --preset` knows.
std::vector<std::string> list_presets();

/// The published model whose tokenizer.json a preset is for, as Hugging Face names it; empty for a preset that comes
/// with its own.
std::string get_tokenizer_source(const std::string& preset);

/// Writes a randomly initialized checkpoint of a preset to `out`, which must not exist or be empty. `tokenizer` is a
/// tokenizer.json for presets that come without one; empty for the others. `dtype` is float32, bfloat16 or float16; the
/// 16-bit values are the float32 ones rounded. Memory holds one tensor at a time. Throws UserError: kUsage, naming the
/// known presets, for an unknown one; kBadData for a tokenizer that is none, or none for this preset; kFailed where the
/// disk has no room.
void write_preset(const std::string& preset, const std::filesystem::path& tokenizer, uint64_t seed,
                  const std::filesystem::path& out, at::ScalarType dtype = at::kFloat);

/// Writes the files of a preset as they are, without weights, into the existing `folder`: enough for build_model and
/// shape_of, but not for load_processor where the preset comes without a tokenizer. Errors as write_preset's.
void write_preset_config(const std::string& preset, const std::filesystem::path& folder);

}  // namespace vlmtrain::models
