#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "io/files/input_file.h"

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

}  // namespace vlmtrain::io
