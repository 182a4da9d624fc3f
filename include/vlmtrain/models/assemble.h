#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace vlmtrain::models {

/// What a model that draws masks is put together from.
struct AssemblyParts {
  std::string preset;                     ///< "prs-med-7b"
  std::filesystem::path text_model = {};  ///< a LLaVA's folder; empty: the preset's, at random
  std::filesystem::path mask_model = {};  ///< of SAM, MobileSAM or SamModel; empty: the preset's, at random
  std::filesystem::path tokenizer = {};   ///< a tokenizer.json where `text_model`, or the preset, has none
  uint64_t seed = 0;                      ///< of what starts at random
};

/// What became of them.
struct Assembly {
  int64_t from_text_model = 0;  ///< tensors
  int64_t from_mask_model = 0;
  int64_t at_random = 0;
  int64_t mask_token_id = 0;
  int64_t vocabulary = 0;  ///< rows of the embedding
};

/// Writes a checkpoint of `parts` to `out`, which must not exist or be empty. Its config.json and the files beside it
/// are the text model's, with the mask token added to tokenizer and vocabulary: rows that the embedding and the output
/// lack are the mean of those that are there. Weights have the types that they are stored in, those at random that of
/// the text model. Memory holds one tensor at a time, and a .pt or .pth file.
///
/// Throws UserError: kUsage for a preset that draws no masks and for a text model that is no LLaVA's; kBadData, which
/// lists what is missing, for parts that are damaged or in an unknown layout; kFailed where the disk has no room.
Assembly assemble(const AssemblyParts& parts, const std::filesystem::path& out);

}  // namespace vlmtrain::models
