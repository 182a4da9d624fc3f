#include <optional>
#include <string>
#include <vector>

#include "app/commands/commands.h"
#include "app/plan_samples/plan_request.h"
#include "app/process/model_folder.h"
#include "app/process/output.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/report/inspection.h"
#include "vlmtrain/train/hub_references.h"
#include "vlmtrain/train/inspection.h"
#include "vlmtrain/train/past_runs.h"
#include "vlmtrain/train/saved_settings.h"

namespace vlmtrain::app {

namespace {

/// Returns the GPU of --gpu or --gpu-gb, for which memory is predicted, calibrated with past runs;
/// nothing if neither is given. Throws UserError (kUsage).
std::optional<planner::TargetGpu> find_requested_gpu(const InspectArguments& arguments) {
  if (arguments.gpu_arguments.gpu.empty() && !arguments.gpu_arguments.gpu_gigabytes) return std::nullopt;
  planner::TargetGpu target = resolve_target_gpu(arguments.gpu_arguments);
  const auto past_runs =
      train::load_past_runs(train::find_past_runs_file(), train::get_gpu_run_environment(target.device_name));
  if (past_runs) train::calibrate_with_past_runs(target, *past_runs);
  return target;
}

}  // namespace

ExitCode inspect(const InspectArguments& arguments) {
  init_logging(/*quiet=*/false);
  check_can_overwrite({"--html", arguments.html, "a page of inspect", report::kInspectionTitleSuffix});
  train::Config config;
  train::declare_options(config).read(arguments.config, arguments.overrides);
  if (config.model.path.empty()) throw usage_error("{}: empty; set it to a checkpoint or a preset", keys::model::kPath);
  if (config.data.train.empty()) throw usage_error("{}: empty; set it to the data to inspect", keys::data::kTrain);
  train::resolve_run_chat_template_date(config.data, config.output.dir);
  train::InspectionRequest inspection_request{.model = config.model.path,
                                              .decode = arguments.decode,
                                              .samples = arguments.samples,
                                              .records = arguments.records,
                                              .target = find_requested_gpu(arguments)};
  const ModelFolder model(config.model.path, arguments.tokenizer, config.hub.commits);
  train::fetch_hub_data(config);
  config.model.path = model.path();
  config.model.adapter = train::fetch_model_folder(config.model.adapter, hub::ModelFiles::kAdapter, config.hub.commits);
  if (model.preset() != nullptr) model.preset()->check_has_tokenizer();
  report::Inspection inspection = model.name_in_errors([&] { return train::inspect_data(config, inspection_request); });
  if (model.preset() != nullptr)
    inspection.chat_template = model.preset()->replace_temporary_paths(inspection.chat_template);
  if (!arguments.html.empty()) io::write_file(arguments.html, report::render_inspection_page(inspection));
  if (arguments.json) {
    fmt::print("{}\n", io::to_json_string(inspection.to_json()));
  } else {
    fmt::print("{}", report::format_inspection(inspection, detect_stdout_style()));
  }
  return inspection.exit_code;
}

}  // namespace vlmtrain::app
