#pragma once

#include <string>

#include "hub/connection.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/hub/repo.h"
#include "vlmtrain/hub/settings.h"

namespace vlmtrain::hub {

/// Returns the error for a failed request to the Hub about a file of `repo`, or about the
/// repository if `file` is empty.
UserError make_hub_error(const HubSettings& settings, const Repo& repo, const std::string& file,
                         const HubResponse& response);

}  // namespace vlmtrain::hub
