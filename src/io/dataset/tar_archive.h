#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "io/files/stored_file.h"

namespace vlmtrain::io {

/// A file of a tar.
struct TarMember {
  std::string name;
  uint64_t offset = 0;  ///< of the content in the tar
  uint64_t bytes = 0;
  std::string problem{};  ///< predicate for messages if the content cannot be read; else empty
};

/// Calls `visit` for each file of a tar in order. Only headers are read. Supports ustar and pax
/// headers of POSIX and long names of GNU tar. Folders are skipped. Links, sparse files and a
/// truncated last file have a problem. Throws data_error that names the tar and the byte if it is
/// not a tar.
///
/// Formats: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Header Block"; GNU tar manual,
/// "Basic Tar Format".
void for_each_tar_member(const StoredFile& tar, const std::function<void(TarMember)>& visit);

/// Returns true if the first bytes of a file are those of a tar.
bool is_tar(std::string_view first_bytes);

}  // namespace vlmtrain::io
