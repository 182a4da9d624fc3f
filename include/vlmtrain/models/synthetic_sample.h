#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string_view>

#include "vlmtrain/data/shape.h"
#include "vlmtrain/data/video_layout.h"

namespace vlmtrain::models {

/// A sample that does not exist: so many images or volumes of one size, perhaps a video, and so much text.
struct SyntheticSample {
  std::optional<int64_t> images = std::nullopt;    ///< nothing: one, where the family takes pictures
  int64_t image_width = 1024, image_height = 768;  ///< pixels; of no effect without images
  int64_t video_frames = 0;                        ///< of its video, as many as that has; 0: no video
  double video_fps = 0;  ///< that the video is shown at; 0: not known, as of a folder of frames, which is taken whole
  int64_t video_width = 1024, video_height = 768;          ///< pixels of a frame; of no effect without a video
  int64_t text_tokens = 256;                               ///< question and answer, chat template included
  int64_t label_tokens = 64;                               ///< of these, those that are learnt
  std::optional<int64_t> image_max_pixels = std::nullopt;  ///< as ProcessorSettings::image_max_pixels
  double sampling_fps = 2.0;                               ///< as ProcessorSettings::video_fps
  int64_t video_max_frames = 128;                          ///< as ProcessorSettings::video_max_frames
  data::VideoLayout video_layout = data::VideoLayout::kReleased;
  std::optional<int64_t> masks = std::nullopt;            ///< nothing: one of each image, where the family draws them
  std::optional<int64_t> mask_image_size = std::nullopt;  ///< as ProcessorSettings::mask_image_size
  std::optional<int64_t> volumes = std::nullopt;          ///< nothing: one, where the family takes volumes alone
  std::optional<std::array<int64_t, 3>> volume_size = std::nullopt;  ///< voxels; nothing: as the model was made for
  at::ScalarType volume_dtype = at::kFloat;                          ///< of a voxel, float or half
};

/// Its sizes as the processor of `folder` would make them; `folder` needs config.json and the processor's settings.
///
/// Tiles and image tokens are exact. What marks the tiles in the text is counted with tokenizer.json where `folder` has
/// one, and so exact too. Else it is counted as SmolVLM's tokenizers do: a marker is one token, or, where there is an
/// added_tokens.json that does not list it, one for each of its words, digits and punctuation marks.
///
/// Throws UserError: kUsage for numbers that no sample has and for media that the family does not take, kBadData as
/// load_processor does.
data::SampleShape compute_sample_shape(const std::filesystem::path& folder, const SyntheticSample& sample);

/// How long a sequence a model was made for.
struct ContextLength {
  int64_t tokens = 0;
  bool is_hard_limit = false;  ///< its processor takes no longer sample; else a longer one trains, at untried positions
  std::string_view key = "max_position_embeddings";  ///< of config.json, which says so
};

/// What config.json of `folder` says. Throws UserError (kBadData).
ContextLength read_context_length(const std::filesystem::path& folder);

}  // namespace vlmtrain::models
