#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace vlmtrain::io {

/// A file of a WebDataset record; its ending is what follows the first dot of its name.
struct TarFile {
  std::string extension;
  uint64_t offset = 0;  ///< of its content in the tar
  uint64_t bytes = 0;
};

enum class TarFileKind {
  kJson,
  kText,
  kImage,
  kVideo,
  kVolume,
  kMask,     ///< an image that is named like a mask of another: a.mask.png, a.liver_seg.0.png
  kDerived,  ///< an image or volume that is made of another one: a.thumb.jpg, a.overlay.png, a.seg.nii.gz
  kAudio,
  kOther,
};

/// Returns the kind of a file by its ending, in letters of any case: by its last word ("png" of "0.png"), of "png.0" by
/// the one before the number. Images and videos in formats that are not read have these kinds too: a record cannot be
/// used then, rather than without them.
TarFileKind get_tar_file_kind(std::string_view extension);

/// Returns `text` with ASCII letters in lower case: endings are compared so, as webdataset does.
std::string to_lower_ascii(std::string_view text);

}  // namespace vlmtrain::io
