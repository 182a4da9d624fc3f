#pragma once

#include <filesystem>
#include <memory>
#include <span>

#include "vlmtrain/image/video.h"

namespace vlmtrain::image {

/// Where a video's frames come from.
class VideoFile::Source {
 public:
  explicit Source(const VideoInfo& info) : info_(info) {}
  virtual ~Source() = default;

  const VideoInfo& info() const { return info_; }
  /// Writes the frames `indices`, ascending and in range, to `out` [indices, 3, height, width].
  virtual void read(std::span<const int64_t> indices, uint8_t* out) const = 0;

 private:
  VideoInfo info_;
};

/// Of a folder of pictures.
std::unique_ptr<const VideoFile::Source> open_frame_folder(const std::filesystem::path& folder);
/// Of a file that FFmpeg reads.
std::unique_ptr<const VideoFile::Source> open_encoded_video(const std::filesystem::path& file);

}  // namespace vlmtrain::image
