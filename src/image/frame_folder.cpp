#include <algorithm>
#include <array>
#include <cctype>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "image/frame_source.h"
#include "image/natural_order.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/image/decode.h"

namespace vlmtrain::image {
namespace {

bool is_picture(const std::filesystem::path& file) {
  constexpr std::array<std::string_view, 4> kEndings{".jpg", ".jpeg", ".png", ".webp"};
  std::string ending = file.extension().string();
  std::ranges::transform(ending, ending.begin(), [](unsigned char letter) { return std::tolower(letter); });
  return std::ranges::find(kEndings, ending) != kEndings.end();
}

std::vector<std::filesystem::path> frame_files(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    if (is_picture(entry.path())) files.push_back(entry.path());
  }
  if (error) {
    throw data_error("{}: the folder of frames cannot be read ({}); check its permissions", folder.string(),
                     error.message());
  }
  if (files.empty()) {
    throw data_error("{}: a folder without JPEG, PNG or WebP files is no video; put its frames there", folder.string());
  }
  std::ranges::sort(files, comes_before, [](const auto& file) { return file.filename().string(); });
  return files;
}

class FrameFolder final : public VideoFile::Source {
 public:
  explicit FrameFolder(std::vector<std::filesystem::path> files)
      : Source({.frames = std::ssize(files), .fps = 0, .size = read_image_size(files.front())}),
        files_(std::move(files)) {}

  void read(std::span<const int64_t> indices, uint8_t* out) const override {
    const int64_t frame_bytes = 3 * info().size.height * info().size.width;
    for (size_t i = 0; i < indices.size(); ++i, out += frame_bytes) {
      if (i > 0 && indices[i] == indices[i - 1]) {
        std::memcpy(out, out - frame_bytes, frame_bytes);
      } else {
        read_frame(files_[indices[i]], out);
      }
    }
  }

 private:
  void read_frame(const std::filesystem::path& file, uint8_t* out) const {
    const at::Tensor frame = decode_image_file(file);
    const auto [height, width] = info().size;
    if (frame.size(1) != height || frame.size(2) != width) {
      throw data_error("{}: a frame of {} x {} pixels in a video of {} x {}; make all frames of the folder equal",
                       file.string(), frame.size(2), frame.size(1), width, height);
    }
    std::memcpy(out, frame.const_data_ptr<uint8_t>(), frame.nbytes());
  }

  std::vector<std::filesystem::path> files_;
};

}  // namespace

std::unique_ptr<const VideoFile::Source> open_frame_folder(const std::filesystem::path& folder) {
  return std::make_unique<const FrameFolder>(frame_files(folder));
}

}  // namespace vlmtrain::image
