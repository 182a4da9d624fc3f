#include "app/report_arguments.h"

namespace vlmtrain::app {

void declare(CLI::App& command, ReportArguments& arguments) {
  command.add_option("run_dir", arguments.folder, "folder of a run: its output.dir")->required();
}

}  // namespace vlmtrain::app
