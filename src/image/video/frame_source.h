#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "vlmtrain/image/video.h"

namespace vlmtrain::image {

/// Interface of the kinds of videos: encoded files, and images as frames.
class VideoFile::FrameSource {
 public:
  explicit FrameSource(const VideoInfo& info) : info_(info) {}
  virtual ~FrameSource() = default;

  const VideoInfo& info() const { return info_; }

  /// Writes a frame to `planes` [3, height, width]. Fast if indices ascend from call to call.
  /// REQUIRES: 0 <= index < info().frames.
  virtual void read(int64_t index, uint8_t* planes) = 0;

 private:
  VideoInfo info_;
};

/// Throws UserError (kBadData) if a video has more than kMaxVideoFrames.
void check_frame_count(int64_t frames, const std::string& name);

/// Opens images as frames. `fps`: 0 if unknown. REQUIRES: at least one image.
std::unique_ptr<VideoFile::FrameSource> open_frame_list(std::vector<io::MediaRef> images, double fps);

/// Opens the images of a folder as frames.
std::unique_ptr<VideoFile::FrameSource> open_frame_folder(const std::filesystem::path& folder, double fps);

/// Opens a file that FFmpeg reads, or its bytes.
std::unique_ptr<VideoFile::FrameSource> open_encoded_video(const io::MediaRef& video);

}  // namespace vlmtrain::image
