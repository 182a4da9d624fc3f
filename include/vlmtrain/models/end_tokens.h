#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "vlmtrain/models/processor.h"

namespace vlmtrain::models {

/// The tokens that end an answer: the processor's end of turn, and the eos_token_id of `folder`/generation_config.json
/// (a number or a list), where there is one. Of an adapter's folder, its base's.
std::vector<int64_t> end_token_ids(const std::filesystem::path& folder, const Processor& processor);

}  // namespace vlmtrain::models
