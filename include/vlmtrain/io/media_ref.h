#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace vlmtrain::io {

/// A reference to an image, a video or a volume of a record: a file, bytes in the data set, or the frames of a video.
/// The path of a video may be a folder of frames.
struct MediaRef {
  MediaRef() = default;
  // Implicit, because a path is a reference: NOLINTBEGIN(google-explicit-constructor)
  MediaRef(std::string file) : path(std::move(file)) {}
  MediaRef(const char* file) : path(file) {}
  MediaRef(const std::filesystem::path& file) : path(file.string()) {}
  // NOLINTEND(google-explicit-constructor)

  std::string path;                               ///< of the file; with `bytes`, a name for messages
  std::shared_ptr<const std::string> bytes = {};  ///< the content; null if it is in the file
  std::vector<MediaRef> frames = {};  ///< of a video that is a list of images; `path` is that of the first frame
  double fps = 0;                     ///< frame rate of `frames` or of a folder of frames; 0 if the data has none
  bool is_volume = false;             ///< a NIfTI volume
  std::string modality = {};          ///< of a volume, such as "T1w"; empty if the data has none

  bool operator==(const MediaRef&) const = default;
};

/// Returns the value of `bytes` in records of Records::at_without_bytes(): an empty string that stands for content that
/// was not read.
const std::shared_ptr<const std::string>& omitted_bytes();

/// Returns the content of a reference with bytes. REQUIRES: `bytes` is neither null nor omitted_bytes().
const std::string& get_media_bytes(const MediaRef& media_ref);

}  // namespace vlmtrain::io
