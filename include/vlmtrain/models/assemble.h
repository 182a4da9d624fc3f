#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace vlmtrain::models {

/// The sources that a model with a mask decoder or a volume tower is assembled from.
struct AssemblyOptions {
  std::string preset;  ///< "prs-med-7b", "brain-llava-7b"
  /// Folder of a LLaVA checkpoint; for volume models also of Llama, Mistral or Qwen2. Empty: random
  /// weights of the preset.
  std::filesystem::path text_model = {};
  std::filesystem::path mask_model = {};    ///< of SAM, MobileSAM or SamModel; empty: random weights of the preset
  std::filesystem::path volume_tower = {};  ///< weights of MONAI's ViT; empty: random weights of the preset
  std::optional<int64_t> tower_heads =
      std::nullopt;  ///< attention heads of volume_tower; nothing: the preset's, else heads of 64 channels
  std::optional<std::array<int64_t, 3>> volume_size =
      std::nullopt;  ///< voxels that volume_tower has positions for; nothing: the preset's, else a cube
  std::filesystem::path tokenizer = {};  ///< a tokenizer.json, needed if text_model or the preset has none
  uint64_t seed = 0;                     ///< of random weights
};

/// The number of tensors from each source, and facts of the new model.
struct AssemblyResult {
  int64_t num_text_tensors = 0;  ///< tensors from text_model
  int64_t num_mask_tensors = 0;
  int64_t num_volume_tensors = 0;
  int64_t num_random_tensors = 0;
  int64_t mask_token_id = 0;  ///< id of the mask token, of a model with a mask decoder
  int64_t vocab_size = 0;     ///< rows of the embedding
};

/// Writes a checkpoint assembled from `options` to `out`, which must not exist or be empty.
/// config.json, tokenizer, processor and template files come from the text model, with the mask or
/// volume token added. New rows of embedding and output are the mean of the existing ones. Weights
/// keep their stored dtypes; random ones have the text model's. Memory holds one tensor at a time,
/// and a .pt or .pth file.
/// Throws UserError: kUsage for a preset that cannot be assembled and for unsupported sources;
/// kBadData, which lists missing tensors, for damaged sources and unknown layouts; kFailed if the
/// disk is full.
AssemblyResult assemble(const AssemblyOptions& options, const std::filesystem::path& out);

}  // namespace vlmtrain::models
