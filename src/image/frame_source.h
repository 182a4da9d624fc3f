#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "vlmtrain/image/video.h"

namespace vlmtrain::image {

/// Where a video's frames come from.
class VideoFile::FrameSource {
 public:
  explicit FrameSource(const VideoInfo& info) : info_(info) {}
  virtual ~FrameSource() = default;

  const VideoInfo& info() const { return info_; }
  /// Writes the frame of this index, in range, to `planes` [3, height, width]. Indices that ascend from one call to the
  /// next are what is fast.
  virtual void read(int64_t index, uint8_t* planes) = 0;

 private:
  VideoInfo info_;
};

/// A data error where a video has more than kMaxVideoFrames.
void check_frame_count(int64_t frames, const std::string& name);

/// Of images, in their order, `fps` of them a second (0: unknown). REQUIRES: at least one.
std::unique_ptr<VideoFile::FrameSource> open_frame_list(std::vector<io::MediaRef> images, double fps);
/// Of a folder of them.
std::unique_ptr<VideoFile::FrameSource> open_frame_folder(const std::filesystem::path& folder, double fps);
/// Of a file that FFmpeg reads, or its bytes.
std::unique_ptr<VideoFile::FrameSource> open_encoded_video(const io::MediaRef& video);

}  // namespace vlmtrain::image
