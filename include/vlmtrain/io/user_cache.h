#pragma once

#include <filesystem>

namespace vlmtrain::io {

/// Where this user's programs keep what can be made again: $VLMTRAIN_CACHE, or vlmtrain in $XDG_CACHE_HOME or
/// ~/.cache (the XDG Base Directory Specification: a path that is not absolute is passed over). Empty where none of
/// these is set. It need not exist.
std::filesystem::path get_user_cache_folder();

}  // namespace vlmtrain::io
