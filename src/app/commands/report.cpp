#include "app/commands/commands.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/report/run_report.h"

namespace vlmtrain::app {

ExitCode report(const ReportArguments& arguments) {
  init_logging(/*quiet=*/false);
  for (const std::string& problem : report::write_run_report(arguments.folder)) spdlog::warn("{}", problem);
  spdlog::info("{}/report.html: written", arguments.folder);
  return ExitCode::kSuccess;
}

}  // namespace vlmtrain::app
