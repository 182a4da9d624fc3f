#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "vlmtrain/data/shape.h"

namespace vlmtrain::models {

/// A sample that does not exist: so many images of one size, perhaps a video, and so much text.
struct HypotheticalSample {
  int64_t images = 1;
  int64_t image_width = 1024, image_height = 768;  ///< pixels; of no effect without images
  int64_t video_frames = 0;                        ///< of its video, as many as that has; 0: no video
  double video_fps = 0;  ///< that the video is shown at; 0: not known, as of a folder of frames, which is taken whole
  int64_t video_width = 1024, video_height = 768;          ///< pixels of a frame; of no effect without a video
  int64_t text_tokens = 256;                               ///< question and answer, chat template included
  int64_t label_tokens = 64;                               ///< of these, those that are learnt
  std::optional<int64_t> image_max_pixels = std::nullopt;  ///< as ProcessorSettings::image_max_pixels
  double wanted_fps = 2.0;                                 ///< as ProcessorSettings::video_fps
  int64_t video_max_frames = 128;                          ///< as ProcessorSettings::video_max_frames
  std::optional<int64_t> masks = std::nullopt;             ///< nothing: one of each image, where the family draws them
  std::optional<int64_t> mask_image_size = std::nullopt;   ///< as ProcessorSettings::mask_image_size
};

/// Its sizes as the processor of `folder` would make them; `folder` needs config.json and the processor's settings.
///
/// Tiles and image tokens are exact. What marks the tiles in the text is counted with tokenizer.json where `folder` has
/// one, and so exact too. Else it is counted as SmolVLM's tokenizers do: a marker is one token, or, where there is an
/// added_tokens.json that does not list it, one for each of its words, digits and punctuation marks.
///
/// Throws UserError: kUsage for numbers that no sample has and for a video in a family that takes none, kBadData as
/// load_processor does.
data::SampleShape shape_of(const std::filesystem::path& folder, const HypotheticalSample& sample);

/// How long a sequence a model was made for.
struct ContextLength {
  int64_t tokens = 0;
  bool refuses_longer =
      false;  ///< its processor takes no longer sample; else a longer one trains, at untried positions
};

/// What config.json of `folder` says (max_position_embeddings). Throws UserError (kBadData).
ContextLength context_length_of(const std::filesystem::path& folder);

}  // namespace vlmtrain::models
