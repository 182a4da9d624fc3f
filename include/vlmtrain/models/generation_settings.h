#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace vlmtrain::models {

/// Returns the keys of `folder`/generation_config.json that change what transformers' generate answers and are not
/// applied here, in alphabetical order: neither eos_token_id nor known to be harmless, and with a value other than the
/// default. Empty without such a file; of an adapter without one, its base's. Throws UserError (kBadData) where the
/// file is not JSON.
std::vector<std::string> find_unapplied_generation_settings(const std::filesystem::path& folder);

}  // namespace vlmtrain::models
