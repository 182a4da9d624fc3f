#pragma once

#include <string>

namespace vlmtrain::io {

/// Whether `text` is `Owner/Name` of the letters that the Hugging Face Hub takes, and no folder is called like the
/// owner.
bool is_hub_name(const std::string& text);

}  // namespace vlmtrain::io
