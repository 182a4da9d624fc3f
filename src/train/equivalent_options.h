#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace vlmtrain::train {

/// What stands here for a key of another trainer (transformers, TRL, LLaMA-Factory, ms-swift, axolotl, LLaVA's and
/// Qwen's scripts), as a message says it; nothing for a word that none of them has. Of a dotted key the last word
/// counts.
std::optional<std::string> find_equivalent_option(std::string_view key);

}  // namespace vlmtrain::train
