#include "vlmtrain/image/video.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "image/frame_source.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::image {

VideoFile::VideoFile(std::filesystem::path path)
    : source_(std::filesystem::is_directory(path) ? open_frame_folder(path) : open_encoded_video(path)) {}

VideoFile::VideoFile(VideoFile&&) noexcept = default;
VideoFile& VideoFile::operator=(VideoFile&&) noexcept = default;
VideoFile::~VideoFile() = default;

const VideoInfo& VideoFile::info() const {
  return source_->info();
}

at::Tensor VideoFile::read(std::span<const int64_t> frames) const {
  VLMTRAIN_CHECK(std::ranges::is_sorted(frames), "frames are asked for in ascending order");
  VLMTRAIN_CHECK(frames.empty() || (frames.front() >= 0 && frames.back() < info().frames),
                 "frames {} to {} of a video of {}", frames.front(), frames.back(), info().frames);
  const auto [height, width] = info().size;
  at::Tensor result = at::empty({static_cast<int64_t>(frames.size()), 3, height, width}, at::kByte);
  if (!frames.empty()) source_->read(frames, result.mutable_data_ptr<uint8_t>());
  return result;
}

}  // namespace vlmtrain::image
