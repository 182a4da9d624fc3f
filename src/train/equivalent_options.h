#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace vlmtrain::train {

/// Returns the message about the equivalent of a key of another trainer (transformers, TRL,
/// LLaMA-Factory, ms-swift, axolotl, LLaVA's and Qwen's scripts); nullopt for an unknown word. The
/// last word of a dotted key counts.
std::optional<std::string> find_equivalent_option(std::string_view key);

}  // namespace vlmtrain::train
