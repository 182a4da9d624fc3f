#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace vlmtrain::train {

/// Returns a hint about the equivalent of a key of another trainer (transformers, TRL,
/// LLaMA-Factory, ms-swift, axolotl, the scripts of LLaVA and Qwen); nullopt for an unknown key.
/// Only the part after the last point of `key` counts.
std::optional<std::string> find_equivalent_option(std::string_view key);

}  // namespace vlmtrain::train
