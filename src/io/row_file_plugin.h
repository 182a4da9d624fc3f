#pragma once

#include <filesystem>
#include <memory>

#include "vlmtrain/io/row_file.h"

namespace vlmtrain::io {

/// A Parquet file, by the plug-in libvlmtrain_parquet.so, which is loaded at the first call: it lies in the program's
/// folder or the one above, or where the system looks for libraries. data_error where the file cannot be read; where
/// there is no plug-in, with how to get it.
std::unique_ptr<const RowFile> open_row_file(const std::filesystem::path& file);

}  // namespace vlmtrain::io
