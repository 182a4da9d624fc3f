#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/gemma4/image_processor.h"
#include "models/gemma4/video_processor.h"
#include "models/processing/preprocessor_config.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/image/video.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/text/chat_template.h"
#include "vlmtrain/text/tokenizer.h"

namespace vlmtrain::models::gemma4 {

/// Ids of the media tokens in config.json; the defaults are those of the published models.
struct MediaTokenIds {
  int64_t image = 258880;        ///< image_token_id: replaced by a feature of an image
  int64_t video = 258884;        ///< video_token_id: replaced by a feature of a video frame
  int64_t image_start = 255999;  ///< boi_token_id: before the tokens of an image or frame
  int64_t image_end = 258882;    ///< eoi_token_id: after them
  int64_t audio = 258881;        ///< audio_token_id: stands for audio, which is not supported
};

/// The same tokens as the tokenizer spells them.
struct MediaTokenTexts {
  std::string image, video, image_start, image_end;
};

/// Returns the texts of `ids`. The chat template writes `image` and `video` as placeholders of
/// media. Throws UserError (kBadData) for an id that is not an added token.
MediaTokenTexts find_media_token_texts(const text::Tokenizer& tokenizer, const MediaTokenIds& ids);

/// Returns the text of an image: `texts.image` once per token, between the markers.
std::string format_image_text(int64_t tokens, const MediaTokenTexts& texts);

/// Returns the text of a video: for each of its frames the time stamp, a space, and
/// `tokens_per_frame` times `texts.video` between the markers. Spaces separate frames.
std::string format_video_text(const std::vector<std::string>& timestamps, int64_t tokens_per_frame,
                              const MediaTokenTexts& texts);

/// The part of config.json that the processor needs.
struct ProcessorConfig {
  PatchShape patches;
  MediaTokenIds tokens;
  int64_t vocab_size = 262144;
};

/// Returns the sample sizes of one image of `size` with its markers.
data::SampleShape compute_image_sample_shape(const PixelSettings& settings, const PatchShape& shape,
                                             image::ImageSize size);

/// Returns the sample sizes of a video with its time stamps and markers. Their number of tokens is
/// exact if `folder` has a tokenizer.json; otherwise counted as Gemma's tokenizer splits time
/// stamps, one token per character. Throws as VideoSettings::select_frames().
data::SampleShape compute_video_sample_shape(const VideoSettings& settings, const ProcessorConfig& config,
                                             const image::VideoInfo& video, const std::filesystem::path& folder);

/// Returns the changes to the processor files of `folder` for `settings`, as
/// Family::make_processor_overrides.
ProcessorOverrides make_processor_overrides(const PatchShape& shape, const std::filesystem::path& folder,
                                            const ProcessorSettings& settings, bool has_videos);

/// Returns the processor of Gemma 4 (transformers' Gemma4Processor and Gemma4UnifiedProcessor). An
/// image or video is one grid; the grid of a video has a frame for each sampled frame. Rows of
/// pixels are ordered by frame, then by token, then within the token. Throws UserError (kBadData) if
/// the tokenizer does not match `config`.
std::unique_ptr<Processor> make_processor(const ProcessorConfig& config, const PixelSettings& images,
                                          const VideoSettings& videos, text::Tokenizer tokenizer,
                                          text::ChatTemplate chat_template, const ProcessorSettings& settings);

}  // namespace vlmtrain::models::gemma4
