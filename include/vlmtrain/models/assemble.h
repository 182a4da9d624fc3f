#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace vlmtrain::models {

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
