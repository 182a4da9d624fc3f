#pragma once

#include <memory>
#include <string>

#include "vlmtrain/io/medium.h"

namespace vlmtrain::io {

/// The `bytes` of each medium whose bytes Records::at_without_bytes() left out. They are empty and are never read as
/// content.
const std::shared_ptr<const std::string>& omitted_bytes();

/// Returns the content of a medium that has bytes. REQUIRES: it has, and they were not left out: a record of
/// at_without_bytes() has the number and the kinds of its media, Records::at() has their content.
const std::string& get_media_bytes(const MediaRef& media_ref);

}  // namespace vlmtrain::io
