#include <nlohmann/json.hpp>

#include <string>

#include "app/commands/commands.h"
#include "app/process/device.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/train/hub_references.h"
#include "vlmtrain/train/run_checkpoint.h"

namespace vlmtrain::app {

ExitCode merge(const MergeArguments& arguments) {
  init_logging(/*quiet=*/false);
  const std::string adapter =
      train::resolve_checkpoint(train::fetch_model_folder(arguments.adapter, hub::ModelFiles::kAdapter)).string();
  const models::MergeStats merge_stats = models::merge_adapter(
      adapter, arguments.out,
      {.base = train::fetch_model_folder(arguments.base), .dtype = parse_weight_dtype(arguments.dtype)});
  if (arguments.json) {
    fmt::print("{}\n",
               io::to_json_string(nlohmann::ordered_json{{"adapter", adapter},
                                                         {"checkpoint", arguments.out},
                                                         {"changed_weights", merge_stats.num_changed_elements},
                                                         {"rounded_away", merge_stats.num_rounded_away_elements}}));
  } else {
    spdlog::info("{}: the base of {} with the adapter merged into its weights", arguments.out, adapter);
  }
  return ExitCode::kSuccess;
}

}  // namespace vlmtrain::app
