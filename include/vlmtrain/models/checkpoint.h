#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/nn/weights/shard.h"
#include "vlmtrain/nn/weights/weight_settings.h"

namespace vlmtrain::nn {

struct Parameter;  // nn/weights/parameters.h

}  // namespace vlmtrain::nn

namespace vlmtrain::models {

class Processor;            // processor.h
struct ProcessorSettings;   // processor.h
class VisionLanguageModel;  // model.h

/// Builds the model that `folder`/config.json describes, with uninitialized weights. Reads only the
/// tensor names of weight files. With `lora`, the targeted Linears get adapters. `quantization`
/// applies to the frozen weights of all Linears and requires `lora`. `shard` is this rank's share
/// of the weights of blocks; `per_layer_tables` and `blocks` the memory of per-layer embeddings and of the blocks'
/// weights. Throws UserError: kBadData for an unsupported model, with the list of supported families, and for invalid
/// or unsupported config keys; kUsage, with suggestions, for a LoRA target that matches no Linear.
std::unique_ptr<VisionLanguageModel> build_model(const std::filesystem::path& folder, at::Device device,
                                                 at::ScalarType dtype,
                                                 const std::optional<nn::LoraSettings>& lora = std::nullopt,
                                                 nn::Quantization quantization = nn::Quantization::kNone,
                                                 const nn::Shard& shard = {},
                                                 nn::MemoryPlacement per_layer_tables = nn::MemoryPlacement::kDevice,
                                                 nn::MemoryPlacement blocks = nn::MemoryPlacement::kDevice);

/// Permitted differences between a checkpoint and the model that its config.json describes. Modules
/// and tensors are given by names in their path, as in nn::is_under_module().
struct LoadSettings {
  std::vector<std::string> allow_missing{};     ///< initialized randomly, as by initialize_weights()
  std::vector<std::string> allow_unexpected{};  ///< skipped
  /// Allows the embedding and the output projection to have another number of rows than the model.
  /// Missing rows become the mean of the stored rows; surplus rows are dropped.
  bool allow_embedding_resize = false;
  uint64_t seed = 0;  ///< seed of random values
  /// Allows infinite values and NaN. For a run's own checkpoint, since its optimizer state has the
  /// fp32 values.
  bool allow_non_finite_values = false;
};

/// The differences that load_weights() found and permitted.
struct LoadResult {
  std::vector<nn::Parameter> initialized_parameters;  ///< missing in the checkpoint, initialized randomly
  std::vector<nn::Parameter> resized_parameters;      ///< loaded with another number of rows
  std::vector<std::string> skipped_tensor_names;      ///< tensors of the checkpoint that were not loaded
};

/// Copies the weights of `folder` (`*.safetensors`, single or sharded) into the model, converted to
/// its dtype or quantized, one tensor at a time. Parameters for which find_external_weight()
/// returns a tensor are loaded from its checkpoint. Adapters are not changed. Throws one UserError
/// (kBadData) that lists all missing and unexpected tensors and shape mismatches that `settings` do
/// not allow.
LoadResult load_weights(VisionLanguageModel& model, const std::filesystem::path& folder,
                        const LoadSettings& settings = {});

/// Initializes all weights except adapters. Matrices and embeddings are normal with variance 1 /
/// fan-in, and smaller at the end of residual branches. Biases are 0, norm weights 1. Small models
/// train several times faster with this than with transformers' standard deviation of 0.02. Values
/// depend only on the seed and the parameter's name.
void initialize_weights(VisionLanguageModel& model, uint64_t seed);

/// Returns the processor of the model in `folder`. For an adapter, it is the processor of its base
/// with the adapter's tokenizer, processor and template files. Throws UserError (kBadData) for
/// missing or invalid files.
std::unique_ptr<Processor> load_processor(const std::filesystem::path& folder, const ProcessorSettings& settings);

/// Writes a checkpoint for transformers into the existing folder `out`: the weights in the model's
/// dtype, and config.json, tokenizer, processor and template files of `source`, with the config's
/// dtype set. Weight files are split at `max_shard_bytes`. Throws UserError (kUsage) if the weights
/// are quantized.
void save_checkpoint(const VisionLanguageModel& model, const std::filesystem::path& source,
                     const std::filesystem::path& out, int64_t max_shard_bytes);

/// Returns the names of the presets of `vlmtrain init --preset`.
std::vector<std::string> list_presets();

/// Returns the preset for a name on the Hub, which has an owner and possibly a revision and a suffix
/// such as -Instruct; nothing if there is none.
std::optional<std::string> find_hub_preset(const std::string& hub_name);

/// Returns the Hugging Face name of the model whose tokenizer.json a preset needs; empty if the
/// preset has its own.
std::string get_tokenizer_source(const std::string& preset);

/// Writes a randomly initialized checkpoint of a preset to the folder `out`, which must not exist
/// or must be empty. `tokenizer` is a tokenizer.json for presets without one, else empty. `dtype`
/// is float32, bfloat16 or float16; 16-bit values are float32 values, rounded. Memory holds one
/// tensor at a time. Throws UserError: kUsage for an unknown preset, with the list of presets;
/// kBadData for an invalid tokenizer; kFailed if the disk is full.
void write_preset_checkpoint(const std::string& preset, const std::filesystem::path& tokenizer, uint64_t seed,
                             const std::filesystem::path& out, at::ScalarType dtype = kFloatType);

/// Writes the unchanged files of a preset, without weights, into the existing `folder`. They
/// suffice for build_model() and compute_sample_shape(); load_processor() also needs a tokenizer.
/// Throws as write_preset_checkpoint().
void write_preset_config(const std::string& preset, const std::filesystem::path& folder);

/// The sources that a model with a mask decoder or a volume tower is assembled from.
struct AssemblyOptions {
  std::string preset;  ///< such as "prs-med-7b" or "brain-llava-7b"
  /// Folder of a LLaVA checkpoint; for volume models also of Llama, Mistral or Qwen2. Empty: random
  /// weights of the preset.
  std::filesystem::path text_model = {};
  /// Checkpoint of SAM or MobileSAM (a .pt or .pth file), or folder of a SamModel. Empty: random
  /// weights of the preset.
  std::filesystem::path mask_model = {};
  /// File or folder with the weights of MONAI's ViT, as TowerCheckpoint reads it. Empty: random
  /// weights of the preset.
  std::filesystem::path volume_tower = {};
  /// Attention heads of volume_tower. If unset: the preset's number, else heads of 64 channels.
  std::optional<int64_t> num_tower_heads = std::nullopt;
  /// Voxels that volume_tower has positions for. If unset: the preset's size, else a cube.
  std::optional<std::array<int64_t, 3>> volume_size = std::nullopt;
  /// A tokenizer.json, needed if neither text_model nor the preset has one.
  std::filesystem::path tokenizer = {};
  uint64_t seed = 0;  ///< seed of random weights
};

/// The number of tensors from each source, and facts of the new model.
struct AssemblyResult {
  int64_t num_text_tensors = 0;    ///< tensors from text_model
  int64_t num_mask_tensors = 0;    ///< tensors from mask_model
  int64_t num_volume_tensors = 0;  ///< tensors from volume_tower
  int64_t num_random_tensors = 0;  ///< randomly initialized tensors
  int64_t mask_token_id = 0;       ///< 0 without a mask decoder
  int64_t vocab_size = 0;          ///< rows of the embedding
};

/// Writes a checkpoint assembled from `options` to the folder `out`, which must not exist or must
/// be empty. config.json, tokenizer, processor and template files come from the text model, with
/// the mask or volume token added. New rows of embedding and output are the mean of the existing
/// rows. Weights keep their stored dtypes; random weights have the dtype of the text model. Memory
/// holds one tensor at a time, besides a .pt or .pth file. Throws UserError: kUsage for a preset
/// that cannot be assembled and for unsupported sources; kBadData, which lists missing tensors, for
/// damaged sources and unknown layouts; kFailed if the disk is full.
AssemblyResult assemble_checkpoint(const AssemblyOptions& options, const std::filesystem::path& out);

/// Returns whether models of the preset have a volume tower. Throws UserError (kUsage) for an
/// unknown preset.
bool has_volume_tower(const std::string& preset);

}  // namespace vlmtrain::models
