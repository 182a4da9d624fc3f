#pragma once

#include <memory>
#include <string>

#include "vlmtrain/io/medium.h"

namespace vlmtrain::io {

/// The `bytes` of each medium whose bytes Records::text_at() left out. They are empty and are never read as content.
const std::shared_ptr<const std::string>& dropped_bytes();

/// Returns the content of a medium that has bytes. REQUIRES: it has, and they were not left out: a record of text_at()
/// has the number and the kinds of its media, Records::at() has their content.
const std::string& bytes_of(const Medium& medium);

}  // namespace vlmtrain::io
