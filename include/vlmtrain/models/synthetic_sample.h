#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/data/sample/sample_processor.h"
#include "vlmtrain/data/sample/sample_shape.h"

namespace vlmtrain::models {

/// The description of a hypothetical sample for planning: images or volumes of one size, a video
/// and text.
struct SyntheticSample {
  /// Number of images. If unset: 1 if the family takes images, else 0.
  std::optional<int64_t> images = std::nullopt;
  int64_t image_width = 1024, image_height = 768;  ///< in pixels; ignored without images
  int64_t video_frames = 0;                        ///< frames of the video file; 0: no video
  /// Frame rate of the video file; 0 if unknown, so that all frames are used, as for a folder.
  double video_fps = 0;
  int64_t video_width = 1024, video_height = 768;          ///< of a frame, in pixels; ignored without a video
  int64_t text_tokens = 256;                               ///< tokens of prompt and answer, chat template included
  int64_t label_tokens = 64;                               ///< text tokens that are in the loss
  std::optional<int64_t> image_max_pixels = std::nullopt;  ///< as ProcessorSettings::image_max_pixels
  double sampling_fps = 2.0;                               ///< as ProcessorSettings::video_fps
  int64_t video_max_frames = 128;                          ///< as ProcessorSettings::video_max_frames
  data::VideoTokenLayout video_layout = data::VideoTokenLayout::kReleasedCode;  ///< as ProcessorSettings::video_layout
  /// Number of masks. If unset: one per image if the family predicts masks, else 0.
  std::optional<int64_t> masks = std::nullopt;
  std::optional<int64_t> mask_image_size = std::nullopt;  ///< as ProcessorSettings::mask_image_size
  /// Number of volumes. If unset: 1 if the family takes volumes only, else 0.
  std::optional<int64_t> volumes = std::nullopt;
  /// Size of the resampled volumes in voxels. If unset: as in config.json.
  std::optional<std::array<int64_t, 3>> volume_size = std::nullopt;
  at::ScalarType volume_dtype = kFloatType;  ///< of a voxel, float or half
};

/// Returns the sizes that the processor of `folder` would give the sample. `folder` needs
/// config.json and the processor files. The numbers of tiles and image tokens are exact. The number
/// of tile marker tokens is exact if `folder` has a tokenizer.json. Otherwise it is counted as in
/// SmolVLM's tokenizers: one token per marker, or one per word, digit and punctuation mark if
/// added_tokens.json exists and does not list the marker. Throws UserError: kUsage for invalid
/// numbers and for media that the family does not take, kBadData as load_processor().
data::SampleShape compute_sample_shape(const std::filesystem::path& folder, const SyntheticSample& sample);

/// The maximum sequence length of a model.
struct ContextLength {
  int64_t tokens = 0;
  /// Whether longer samples are rejected. Otherwise they are used, at positions that the model has
  /// not been trained at.
  bool is_hard_limit = false;
  std::string_view key = "max_position_embeddings";  ///< key of config.json that sets `tokens`
};

/// Returns the maximum sequence length of the model in `folder`. Throws UserError (kBadData).
ContextLength read_context_length(const std::filesystem::path& folder);

}  // namespace vlmtrain::models
