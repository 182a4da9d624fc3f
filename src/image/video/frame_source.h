#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "vlmtrain/image/video.h"

namespace vlmtrain::image {

/// Interface of the sources of a video's frames: encoded files, and images. Not thread-safe.
class VideoFile::FrameSource {
 public:
  explicit FrameSource(const VideoInfo& info) : info_(info) {}
  virtual ~FrameSource() = default;

  const VideoInfo& info() const { return info_; }

  /// Writes a frame to `planes`, uint8 [3, height, width] RGB. Fast if indices ascend from call to
  /// call. Throws UserError (kBadData) if the frame is damaged or its size is not info().size.
  /// REQUIRES: 0 <= index < info().num_frames.
  virtual void read(int64_t index, uint8_t* planes) = 0;

 private:
  VideoInfo info_;
};

/// Throws UserError (kBadData) if a video has more than kMaxVideoFrames. `name` identifies the
/// video in the message.
void check_num_frames(int64_t num_frames, const std::string& name);

// The following throw UserError (kBadData) if the video cannot be opened.

/// Opens images as frames, in order. `fps`: frames per second, 0 if unknown. REQUIRES: at least one
/// image.
std::unique_ptr<VideoFile::FrameSource> open_frame_list(std::vector<io::MediaRef> images, double fps);

/// Opens the images of a folder as frames, in natural order of their names.
std::unique_ptr<VideoFile::FrameSource> open_frame_folder(const std::filesystem::path& folder, double fps);

/// Opens a file, or its bytes, with FFmpeg.
std::unique_ptr<VideoFile::FrameSource> open_encoded_video(const io::MediaRef& video);

}  // namespace vlmtrain::image
