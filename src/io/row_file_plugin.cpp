#include "io/row_file_plugin.h"

#include <exception>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/plugin.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::io {
namespace {

constexpr const char* kPluginLibrary = "libvlmtrain_parquet.so";

}  // namespace

std::unique_ptr<const RowFile> open_row_file(const std::filesystem::path& file) {
  // Its symbols are its own: LibTorch's libraries and Arrow's do not see each other.
  static const Plugin plugin =
      load_plugin(kPluginLibrary, kRowFileVersionSymbol, kRowFileVersion, {kOpenRowFileSymbol});
  if (plugin.functions.empty()) {
    throw data_error(
        "{} is Parquet, which {} reads, and that is not there ({}): run scripts/setup.sh, which fetches Arrow, and "
        "build again; or write the data as JSON Lines",
        file.string(), kPluginLibrary, make_excerpt(plugin.problem));
  }
  try {
    return std::unique_ptr<const RowFile>(reinterpret_cast<OpenRowFile*>(plugin.functions.front())(file.c_str()));
  } catch (const std::exception& error) {
    throw data_error("{}: not a Parquet file that can be read: {}; fetch or write it again", file.string(),
                     make_excerpt(error.what(), 300));
  }
}

}  // namespace vlmtrain::io
