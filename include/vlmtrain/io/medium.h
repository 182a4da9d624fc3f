#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace vlmtrain::io {

/// A picture, a video or a volume of a record: a file (of a video also a folder of frames), or bytes that the data set
/// itself carries, or the frames of a video one by one.
struct MediaRef {
  MediaRef() = default;
  // A path is a medium: NOLINTBEGIN(google-explicit-constructor)
  MediaRef(std::string file) : path(std::move(file)) {}
  MediaRef(const char* file) : path(file) {}
  MediaRef(const std::filesystem::path& file) : path(file.string()) {}
  // NOLINTEND(google-explicit-constructor)

  std::string path;                               ///< where the file is; what messages call bytes
  std::shared_ptr<const std::string> bytes = {};  ///< the content; null: that of the file
  std::vector<MediaRef> frames = {};  ///< of a video, where it is a list of pictures; `path` is that of the first
  double fps = 0;  ///< frames a second of `frames` or of a folder of frames, where the data says it; 0: it does not
  bool is_volume = false;     ///< a scan in NIfTI
  std::string modality = {};  ///< of a volume, where the data says it: "T1w"

  bool operator==(const MediaRef&) const = default;
};

}  // namespace vlmtrain::io
