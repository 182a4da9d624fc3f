#include "app/settings/front.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "app/settings/command_line.h"
#include "app/settings/process_setup.h"
#include "vlmtrain/base/process.h"
#include "vlmtrain/planner/virtual_gpu.h"
#include "vlmtrain/train/config.h"
#include "vlmtrain/train/stop_request.h"

namespace vlmtrain::app {

namespace {

constexpr const char* kCoreProgramName = "vlmtrain-core";

/// Throws UserError (kUsage) for keys and values that the command would reject. Does not read a
/// pipe, because the command could not read it again.
void check_config_file(const std::string& file, const std::vector<std::string>& overrides) {
  std::error_code ignored_error;
  if (std::filesystem::exists(file, ignored_error) && !std::filesystem::is_regular_file(file, ignored_error)) return;
  train::Config config;
  train::declare_options(config).read(file, overrides);
}

/// Checks the configuration before the core starts, so that a mistake is reported at once.
void check_command_config(const CommandLine& command_line) {
  const Arguments& arguments = command_line.arguments();
  const std::string& command = command_line.command();
  if (command == "train") check_config_file(arguments.train.config, arguments.train.overrides);
  if (command == "eval") check_config_file(arguments.eval.config, arguments.eval.overrides);
  if (command == "inspect") check_config_file(arguments.inspect.config, arguments.inspect.overrides);
  if (command == "plan") check_config_file(arguments.plan.config, arguments.plan.collect_overrides());
}

/// Runs `vlmtrain options`, with the same message as other commands if stdout cannot be written.
ExitCode run_list_options(const OptionsArguments& arguments) {
  try {
    return flush_stdout(list_options(arguments));
  } catch (const std::system_error&) {  // {fmt} throws if a write fails while it prints
    const ExitCode flush_exit_code = flush_stdout(ExitCode::kSuccess);
    if (flush_exit_code == ExitCode::kSuccess) throw;
    return flush_exit_code;
  }
}

std::filesystem::path find_core_program() {
  return get_program_folder() / kCoreProgramName;
}

/// Returns whether the command certainly needs dry runs. `plan` without a named GPU does not need
/// any if this machine has none.
bool needs_dry_run(const CommandLine& command_line) {
  const PlanArguments& plan = command_line.arguments().plan;
  return command_line.command() == "plan" && (!plan.gpu.empty() || plan.gpu_gigabytes);
}

}  // namespace

int run_front_end(const std::vector<std::string>& arguments, const std::function<int()>& run_core) {
  reopen_closed_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // as in run_program(): writing fails with a message
  CommandLine command_line;
  if (const auto exit_code = command_line.parse(arguments)) return static_cast<int>(*exit_code);
  try {
    // Stop signals are held back until the core has loaded its libraries and handles them. The run
    // then ends with the exit code for requeueing.
    if (command_line.command() == "train") train::block_stop_signals();
    if (command_line.command() == "options")
      return static_cast<int>(run_list_options(command_line.arguments().options));
    check_command_config(command_line);
    set_openmp_wait_policy();  // OpenMP reads it when the core is loaded
    // The dry-run process loads its libraries while the core loads its own.
    if (needs_dry_run(command_line)) planner::prestart_dry_run_process(find_core_program());
    return run_core();
  } catch (const UserError& error) {
    return static_cast<int>(report_user_error(error));
  }
}

void exec_core(char** argv) {
  const auto core_program = find_core_program();
  execv(core_program.c_str(), argv);
  throw run_error(
      "{}: cannot be started: {}; it must be in the folder of vlmtrain: build both (cmake --build --preset release), "
      "or copy it there",
      core_program.string(), std::strerror(errno));
}

}  // namespace vlmtrain::app
