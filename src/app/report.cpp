#include <memory>
#include <string>

#include "app/command.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/report/run_report.h"

namespace vlmtrain::app {

Action declare_report(CLI::App& command) {
  const auto folder = std::make_shared<std::string>();
  command.add_option("run_dir", *folder, "folder of a run: its output.dir")->required();
  return [folder] {
    start_log(/*quiet=*/false);
    report::write_run_report(*folder);
    spdlog::info("{}/report.html is written", *folder);
    return ExitCode::kDone;
  };
}

}  // namespace vlmtrain::app
