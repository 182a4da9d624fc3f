#include "vlmtrain/image/video.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "image/frame_source.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {

void check_frame_count(int64_t frames, const std::string& name) {
  if (frames <= kMaxVideoFrames) return;
  throw data_error("{}: a video of {} frames or more, and {} is the most that is read; cut it into parts", name, frames,
                   kMaxVideoFrames);
}

namespace {

std::unique_ptr<VideoFile::FrameSource> open_source(const io::MediaRef& video) {
  if (!video.frames.empty()) return open_frame_list(video.frames, video.fps);
  if (!video.bytes && std::filesystem::is_directory(video.path)) return open_frame_folder(video.path, video.fps);
  return open_encoded_video(video);
}

}  // namespace

VideoFile::VideoFile(const io::MediaRef& video) : source_(open_source(video)) {}

VideoFile::VideoFile(VideoFile&&) noexcept = default;
VideoFile& VideoFile::operator=(VideoFile&&) noexcept = default;
VideoFile::~VideoFile() = default;

const VideoInfo& VideoFile::info() const {
  return source_->info();
}

void VideoFile::read(std::span<const int64_t> frames, const FrameCallback& take) {
  VLMTRAIN_CHECK(std::ranges::is_sorted(frames), "frames are asked for in ascending order");
  VLMTRAIN_CHECK(frames.empty() || (frames.front() >= 0 && frames.back() < info().frames),
                 "frames {} to {} of a video of {}", frames.front(), frames.back(), info().frames);
  const auto [height, width] = info().size;
  const at::Tensor frame = at::empty({3, height, width}, at::kByte);
  auto* const planes = frame.mutable_data_ptr<uint8_t>();
  for (size_t i = 0; i < frames.size(); ++i) {
    if (i == 0 || frames[i] != frames[i - 1]) source_->read(frames[i], planes);
    take(frame);
  }
}

}  // namespace vlmtrain::image
