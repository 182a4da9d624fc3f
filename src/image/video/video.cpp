#include "vlmtrain/image/video.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "image/codec/byte_source.h"
#include "image/video/frame_source.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/image/image_file.h"

namespace vlmtrain::image {

namespace {

std::unique_ptr<VideoFile::FrameSource> open_frame_source(const io::MediaRef& video) {
  if (!video.frames.empty()) return open_frame_list(video.frames, video.fps);
  if (!video.bytes && std::filesystem::is_directory(video.path)) return open_frame_folder(video.path, video.fps);
  return open_encoded_video(video);
}

/// Returns the image files of a folder that are not hidden, in natural order of their names.
std::vector<io::MediaRef> list_frame_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (has_image_extension(entry.path()) && !is_hidden_file(entry.path())) files.push_back(entry.path());
    check_num_frames(std::ssize(files), folder.string());
  }
  if (error) {
    throw data_error("{}: cannot read the folder of frames ({}); check its permissions", folder.string(),
                     error.message());
  }
  if (files.empty()) {
    throw data_error("{}: the folder has no image files, so it is not a video; put the frames there", folder.string());
  }
  std::ranges::sort(files, precedes_in_natural_order, [](const auto& file) { return file.filename().string(); });
  return {files.begin(), files.end()};
}

/// A source whose frames are image files or embedded images. Reads the header of the first image;
/// the others must have the same size.
class ImageFrameSource final : public VideoFile::FrameSource {
 public:
  ImageFrameSource(std::vector<io::MediaRef> images, double fps, bool is_frame_folder)
      : FrameSource({.num_frames = std::ssize(images),
                     .fps = fps,
                     .size = read_image_size(images.front()),
                     .is_frame_list = !is_frame_folder,
                     .is_frame_folder = is_frame_folder}),
        frame_images_(std::move(images)) {}

  void read(int64_t index, uint8_t* planes) override {
    const io::MediaRef& image = frame_images_[static_cast<size_t>(index)];
    const at::Tensor frame = decode_image(image);
    const auto [height, width] = info().size;
    if (frame.size(1) != height || frame.size(2) != width) {
      throw data_error("{}: a frame of {} x {} pixels in a video of {} x {}; make all frames of the video equal",
                       image.path, frame.size(2), frame.size(1), width, height);
    }
    std::memcpy(planes, frame.const_data_ptr<uint8_t>(), frame.nbytes());
  }

 private:
  std::vector<io::MediaRef> frame_images_;
};

}  // namespace

void check_num_frames(int64_t num_frames, const std::string& name) {
  if (num_frames <= kMaxVideoFrames) return;
  throw data_error("{}: a video of {} frames or more exceeds the limit of {}; split it into parts", name, num_frames,
                   kMaxVideoFrames);
}

VideoFile::VideoFile(const io::MediaRef& video) : source_(open_frame_source(video)) {}

VideoFile::VideoFile(VideoFile&&) noexcept = default;
VideoFile& VideoFile::operator=(VideoFile&&) noexcept = default;
VideoFile::~VideoFile() = default;

const VideoInfo& VideoFile::info() const {
  return source_->info();
}

void VideoFile::read_frames(std::span<const int64_t> frames, const FrameCallback& callback) {
  VLMTRAIN_CHECK(std::ranges::is_sorted(frames), "frames must be requested in ascending order");
  VLMTRAIN_CHECK(frames.empty() || (frames.front() >= 0 && frames.back() < info().num_frames),
                 "frames {} to {} were requested of a video of {} frames", frames.front(), frames.back(),
                 info().num_frames);
  const auto [height, width] = info().size;
  const at::Tensor frame = at::empty({3, height, width}, at::kByte);
  auto* const planes = frame.mutable_data_ptr<uint8_t>();
  for (size_t i = 0; i < frames.size(); ++i) {
    if (i == 0 || frames[i] != frames[i - 1]) source_->read(frames[i], planes);
    callback(frame);
  }
}

std::unique_ptr<VideoFile::FrameSource> open_frame_list(std::vector<io::MediaRef> images, double fps) {
  check_num_frames(std::ssize(images), images.front().path);
  for (const io::MediaRef& image : images) {
    if (!image.bytes) check_is_regular_file(image.path, "the frame");
  }
  return std::make_unique<ImageFrameSource>(std::move(images), fps, /*is_frame_folder=*/false);
}

std::unique_ptr<VideoFile::FrameSource> open_frame_folder(const std::filesystem::path& folder, double fps) {
  return std::make_unique<ImageFrameSource>(list_frame_files(folder), fps, /*is_frame_folder=*/true);
}

}  // namespace vlmtrain::image
