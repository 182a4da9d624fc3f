#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "image/byte_source.h"
#include "image/frame_source.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_kind.h"
#include "vlmtrain/base/natural_order.h"
#include "vlmtrain/image/decode.h"

namespace vlmtrain::image {
namespace {

std::vector<io::Medium> frame_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (is_named_like_a_picture(entry.path()) && !is_hidden(entry.path())) files.push_back(entry.path());
    check_frames(std::ssize(files), folder.string());
  }
  if (error) {
    throw data_error("{}: the folder of frames cannot be read ({}); check its permissions", folder.string(),
                     error.message());
  }
  if (files.empty()) {
    throw data_error("{}: a folder without JPEG, PNG or WebP files is no video; put its frames there", folder.string());
  }
  std::ranges::sort(files, comes_before, [](const auto& file) { return file.filename().string(); });
  return {files.begin(), files.end()};
}

class FramePictures final : public VideoFile::Source {
 public:
  FramePictures(std::vector<io::Medium> pictures, double fps, bool is_folder)
      : Source({.frames = std::ssize(pictures),
                .fps = fps,
                .size = read_image_size(pictures.front()),
                .is_list = !is_folder,
                .is_folder = is_folder}),
        pictures_(std::move(pictures)) {}

  void read(int64_t index, uint8_t* planes) override {
    const io::Medium& picture = pictures_[static_cast<size_t>(index)];
    const at::Tensor frame = decode_image(picture);
    const auto [height, width] = info().size;
    if (frame.size(1) != height || frame.size(2) != width) {
      throw data_error("{}: a frame of {} x {} pixels in a video of {} x {}; make all frames of the video equal",
                       picture.path, frame.size(2), frame.size(1), width, height);
    }
    std::memcpy(planes, frame.const_data_ptr<uint8_t>(), frame.nbytes());
  }

 private:
  std::vector<io::Medium> pictures_;
};

}  // namespace

std::unique_ptr<VideoFile::Source> open_frames(std::vector<io::Medium> pictures, double fps) {
  check_frames(std::ssize(pictures), pictures.front().path);
  for (const io::Medium& picture : pictures) {
    if (!picture.bytes) require_file(picture.path, "the frame");
  }
  return std::make_unique<FramePictures>(std::move(pictures), fps, /*is_folder=*/false);
}

std::unique_ptr<VideoFile::Source> open_frame_folder(const std::filesystem::path& folder, double fps) {
  return std::make_unique<FramePictures>(frame_files(folder), fps, /*is_folder=*/true);
}

}  // namespace vlmtrain::image
