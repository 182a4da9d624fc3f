#pragma once

#include <filesystem>
#include <optional>

#include "vlmtrain/data/options.h"

namespace vlmtrain::train {

/// What data.chat_template_date=auto stands for: the date that the run of `checkpoint` began with, where it is one of a
/// run; else today's. A checkpoint of a run that knew no date leaves it as it is.
void resolve_chat_template_date(data::DataOptions& data, const std::optional<std::filesystem::path>& checkpoint);

/// The same for the run in `run_dir`, by its newest checkpoint.
void resolve_run_chat_template_date(data::DataOptions& data, const std::filesystem::path& run_dir);

}  // namespace vlmtrain::train
