#pragma once

#include <nlohmann/json.hpp>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace vlmtrain::io {

/// A file of a WebDataset record.
struct TarFile {
  std::string extension;  ///< the part of the name after its first dot
  uint64_t offset = 0;    ///< of the content in the tar
  uint64_t bytes = 0;
};

/// Use of a file in a WebDataset record.
enum class TarFileKind {
  kJson,
  kText,
  kImage,
  kVideo,
  kVolume,
  kMask,     ///< an image that is named like a mask of another one: a.mask.png, a.liver_seg.0.png
  kDerived,  ///< an image or volume that is made from another one: a.thumb.jpg, a.overlay.png, a.seg.nii.gz
  kAudio,
  kOther,
};

/// Returns the kind of a file by its extension, in any case. The last word of the extension counts
/// ("png" in "0.png"), or the one before a number ("png" in "png.0"). Formats that are not
/// supported have a kind too, so that their records are reported instead of read without them.
TarFileKind get_tar_file_kind(std::string_view extension);

/// Returns `text` with ASCII letters in lower case. webdataset compares extensions this way.
std::string to_lower_ascii(std::string_view text);

/// Returns true if a list under one of `keys` in a record's .json has the file name of `path`.
bool lists_file(const nlohmann::json& fields, const std::array<const char*, 2>& keys, const std::string& path);

/// Stores media of a tar, each {"path", "bytes"}, under the second of `keys`. Their order is that
/// of the record's own list if it names exactly these files. A list of other names is ignored.
/// Throws data_error if it names only some of them.
void set_media(nlohmann::json& fields, const std::array<const char*, 2>& keys, std::vector<nlohmann::json> media);

/// Stores masks under "masks", merged by file name with the entries of the record's own "mask" or
/// "masks". Returns the paths of masks that the record does not name although it names others.
std::vector<std::string> merge_masks(nlohmann::json& fields, const std::vector<nlohmann::json>& masks);

}  // namespace vlmtrain::io
