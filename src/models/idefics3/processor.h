#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "models/idefics3/family.h"
#include "models/idefics3/image_processor.h"
#include "vlmtrain/image/video.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models::idefics3 {

/// Video settings of a SmolVLM2 checkpoint (PreprocessorConfig::find_for_videos()), limited by
/// those of the run.
struct VideoSettings {
  ImageProcessorSettings frame_settings;  ///< of each frame, which is not split
  double fps = 1;                         ///< sampled frames per second: the checkpoint's, at most data.video_fps
  int64_t max_frames = 64;                ///< maximum per video file: the checkpoint's, at most data.video_max_frames
  int64_t max_listed_frames = 128;        ///< maximum per list of frames: data.video_max_frames, at most 999
  double fallback_fps = 2;                ///< data.video_fps; assumed rate of videos of unknown frame rate

  /// Reads the settings of the checkpoint in `folder`; returns nothing if it has no video sampling,
  /// as Idefics3 and the first SmolVLM. `tile_size` is image_size of the tower, in pixels. Throws
  /// UserError (kBadData) for unsupported settings and other tile sizes.
  static std::optional<VideoSettings> find(const std::filesystem::path& folder, int64_t tile_size,
                                           const ProcessorSettings& settings);

  double get_fps(const image::VideoInfo& video) const { return video.fps > 0 ? video.fps : fallback_fps; }

  /// Returns the ascending indices of the frames to use, at least one, as
  /// SmolVLMVideoProcessor.sample_frames of transformers 5.23, which skips the first and last
  /// second of a long video. For a list of frames, returns all or max_listed_frames evenly spaced
  /// ones.
  std::vector<int64_t> sample_frame_indices(const image::VideoInfo& video) const;
};

/// Returns a number in English words, such as "one hundred and twenty-one", as num2words, which
/// SmolVLM's processor calls. REQUIRES: `number` is from 1 to 999.
std::string spell_number(int64_t number);

/// Returns the text of a SmolVLM2 video: number of frames and duration, then each frame's time and
/// image text. `seconds` are the times of the frames, `duration_seconds` is the length of the
/// video.
std::string format_video_text(std::span<const double> seconds, double duration_seconds, int64_t image_tokens_per_tile);

/// Text of a video.
struct VideoText {
  std::string text;
  int64_t frames;  ///< number of frames with image tokens in the text
};

/// Returns the text of a video with the frames of VideoSettings::sample_frame_indices().
VideoText make_video_text(const VideoSettings& settings, const image::VideoInfo& video, int64_t image_tokens_per_tile);

/// Returns the text of an image: for each cell `<fake_token_around_image><row_r_col_c>` and its
/// image tokens, a line break after each row and one more after the last; then for the full image
/// `<fake_token_around_image><global-img>`, its image tokens and `<fake_token_around_image>`. An
/// image without splitting has the last part only.
std::string format_image_text(TileGrid grid, int64_t image_tokens_per_tile);

/// Returns the number of tokens of the text of images or a video, image tokens included. Exact if
/// `folder` has a tokenizer.json. Otherwise estimated as SmolVLM's tokenizers count: each word,
/// digit, punctuation mark and run of line breaks is one token. A marker such as `<row_1_col_1>` is
/// one token if `folder` has no added_tokens.json or if that file lists it (256M and 500M list all
/// markers, 2.2B does not).
int64_t count_tokens(std::string_view text, const std::filesystem::path& folder);

/// Returns count_tokens() of format_image_text().
int64_t count_image_text_tokens(TileGrid grid, int64_t image_tokens_per_tile, const std::filesystem::path& folder);

/// Returns the processor of Idefics3 and SmolVLM (transformers' Idefics3Processor and
/// SmolVLMProcessor). Each image becomes several tiles, each frame of a video one tile. Without
/// `videos` it does not support videos. Throws UserError (kBadData) if the tokenizer does not match
/// `config`.
std::unique_ptr<Processor> make_processor(const Config& config, const ImageProcessor& images,
                                          const std::optional<VideoSettings>& videos, text::Tokenizer tokenizer,
                                          text::ChatTemplate chat_template, const ProcessorSettings& settings);

}  // namespace vlmtrain::models::idefics3
