#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::io {

/// A file in a tar.
struct TarMember {
  std::string name;       ///< path in the tar
  uint64_t offset = 0;    ///< byte offset of the content in the tar
  uint64_t bytes = 0;     ///< size of the content
  std::string problem{};  ///< end of a message ("is truncated …") if the content cannot be read; else empty
};

/// Calls `visit` for each file of a tar, in the order of the tar. Reads only headers. Supports
/// ustar and pax headers of POSIX and long names of GNU tar. Folders and special files are skipped.
/// Links, sparse files and a truncated last file have a problem. Throws data_error that names the
/// tar and the byte offset if the tar is damaged, and run_error if it has changed since `tar` was
/// created.
///
/// Formats: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Header Block"; GNU tar manual,
/// "Basic Tar Format".
void for_each_tar_member(const DataFile& tar, const std::function<void(TarMember)>& visit);

/// Returns true if a file that starts with `first_bytes` (at least 512) is a tar.
bool is_tar(std::string_view first_bytes);

/// A file of a WebDataset record in a tar.
struct TarFile {
  std::string extension;  ///< the part of the name after its first dot
  uint64_t offset = 0;    ///< byte offset of the content in the tar
  uint64_t bytes = 0;     ///< size of the content
};

/// Use of a file in a WebDataset record.
enum class TarFileKind {
  kJson,
  kText,
  kImage,
  kVideo,
  kVolume,
  kMask,          ///< an image whose name says that it is a mask: a.mask.png, a.liver_seg.0.png
  kDerivedMedia,  ///< an image or volume that its name says is derived: a.thumb.jpg, a.overlay.png, a.seg.nii.gz
  kAudio,
  kOther,
};

/// Returns the kind of a file by its extension, which may have any case. The format is the last
/// word of the extension ("png" in "0.png"), or the word before a final number ("png" in "png.0").
/// Unsupported formats of images and videos also have their kind, so that their records are
/// reported as bad and not read without them.
TarFileKind classify_tar_extension(std::string_view extension);

/// Returns `text` with ASCII letters in lower case. webdataset compares extensions this way.
std::string to_lower_ascii(std::string_view text);

/// Returns true if the record's .json (`fields`) has, under one of `keys`, a path with the file
/// name of `path`, alone or in a list.
bool is_file_listed(const RecordJson& fields, const std::array<const char*, 2>& keys, const std::string& path);

/// Stores `media`, each {"path", "bytes"}, in `fields` under the second of `keys` (the plural). If
/// the record has a list under `keys` that names exactly these files, its order is used. A list
/// that names none of them is replaced. Throws data_error if the list names only some of them. Does
/// nothing if `media` is empty.
void set_media_field(RecordJson& fields, const std::array<const char*, 2>& keys, std::vector<RecordJson> media);

/// Stores `masks`, each {"path", "bytes"}, in `fields` under "masks", merged by file name with the
/// record's own entries under "mask" or "masks". If the record has entries, masks that they do not
/// name are not stored; their paths are returned.
std::vector<std::string> merge_masks(RecordJson& fields, const std::vector<RecordJson>& masks);

}  // namespace vlmtrain::io
