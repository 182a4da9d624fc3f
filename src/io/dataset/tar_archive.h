#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "io/files/stored_file.h"

namespace vlmtrain::io {

struct TarMember {
  std::string name;
  uint64_t offset = 0;  ///< of its content
  uint64_t bytes = 0;
  std::string problem{};  ///< why its content cannot be read, a clause; empty where it can
};

/// Passes all files of a tar to `visit`, in their order: the headers are read, the contents are not. Knows POSIX's
/// ustar and pax headers and GNU's long names; folders are passed over; links, sparse files, and one that the tar's end
/// cuts off, have a problem. data_error names the tar and the byte where it is no tar. Format: POSIX.1-2017, pax,
/// "ustar Interchange Format" and "pax Header Block"; GNU tar manual, "Basic Tar Format".
void for_each_tar_member(const StoredFile& tar, const std::function<void(TarMember)>& visit);

/// Whether a file that begins so is a tar.
bool is_tar(std::string_view first_bytes);

}  // namespace vlmtrain::io
