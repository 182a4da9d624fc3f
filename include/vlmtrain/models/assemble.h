#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace vlmtrain::models {

/// What a model that draws masks, or one of volumes, is put together from.
struct AssemblyOptions {
  std::string preset;  ///< "prs-med-7b", "brain-llava-7b"
  /// A LLaVA's folder, for a model of volumes also one of Llama, Mistral or Qwen2; empty: the preset's, at random.
  std::filesystem::path text_model = {};
  std::filesystem::path mask_model = {};              ///< of SAM, MobileSAM or SamModel; empty: the preset's, at random
  std::filesystem::path volume_tower = {};            ///< weights of MONAI's ViT; empty: the preset's tower, at random
  std::optional<int64_t> tower_heads = std::nullopt;  ///< that weights do not tell; nothing: the preset's, else 64 wide
  std::optional<std::array<int64_t, 3>> volume_size = std::nullopt;  ///< voxels that volume_tower has positions for;
                                                                     ///< nothing: the preset's, else a cube
  std::filesystem::path tokenizer = {};  ///< a tokenizer.json where `text_model`, or the preset, has none
  uint64_t seed = 0;                     ///< of what starts at random
};

/// What became of them.
struct AssemblyResult {
  int64_t num_text_tensors = 0;  ///< tensors
  int64_t num_mask_tensors = 0;
  int64_t num_volume_tensors = 0;
  int64_t num_random_tensors = 0;
  int64_t mask_token_id = 0;  ///< of a model that draws masks
  int64_t vocab_size = 0;     ///< rows of the embedding
};

/// Writes a checkpoint of `options` to `out`, which must not exist or be empty. Its config.json and the files beside it
/// are the text model's, with the token of masks or of volumes added to tokenizer and vocabulary: rows that the
/// embedding and the output lack are the mean of those that are there. Weights have the types that they are stored in,
/// those at random that of the text model. Memory holds one tensor at a time, and a .pt or .pth file.
///
/// Throws UserError: kUsage for a preset that is not put together, and for a text model or parts that it does not take;
/// kBadData, which
/// lists what is missing, for parts that are damaged or in an unknown layout; kFailed where the disk has no room.
AssemblyResult assemble(const AssemblyOptions& options, const std::filesystem::path& out);

}  // namespace vlmtrain::models
