#include "app/front.h"

#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "app/command_line.h"
#include "app/commands.h"
#include "app/openmp_waiting.h"
#include "app/standard_streams.h"
#include "vlmtrain/planner/rehearsal_start.h"
#include "vlmtrain/train/config.h"
#include "vlmtrain/train/stop_request.h"

namespace vlmtrain::app {

namespace {

constexpr const char* kCore = "vlmtrain-core";

/// Throws UserError (kUsage) for keys and values that the command would refuse. A pipe is the command's: it can be read
/// once.
void check_configuration(const std::string& file, const std::vector<std::string>& overrides) {
  std::error_code unknown;
  if (std::filesystem::exists(file, unknown) && !std::filesystem::is_regular_file(file, unknown)) return;
  train::Config config;
  train::declare(config).read(file, overrides);
}

void check_configuration_of(const CommandLine& line) {
  const Arguments& all = line.arguments();
  const std::string& command = line.command();
  if (command == "train") check_configuration(all.train.config, all.train.overrides);
  if (command == "eval") check_configuration(all.eval.config, all.eval.overrides);
  if (command == "inspect") check_configuration(all.inspect.config, all.inspect.overrides);
  if (command == "plan") check_configuration(all.plan.config, all.plan.all_overrides());
}

ExitCode print_options(const OptionsArguments& arguments) {
  try {
    return after_printing(options(arguments));
  } catch (const std::system_error&) {  // of {fmt}, where more is printed than a buffer holds
    const ExitCode printed = after_printing(ExitCode::kDone);
    if (printed == ExitCode::kDone) throw;
    return printed;
  }
}

std::filesystem::path core_file() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/exe", error).parent_path() / kCore;
}

/// Whether the command will rehearse for certain, and needs no look at this machine's card for that.
bool rehearses(const CommandLine& line) {
  const PlanArguments& plan = line.arguments().plan;
  return line.command() == "plan" && (!plan.gpu.empty() || plan.gpu_gigabytes);
}

/// Becomes the core, in this process. Throws UserError where that is not possible.
[[noreturn]] void start_core(const std::filesystem::path& core, char** argv) {
  execv(core.c_str(), argv);
  throw run_error(
      "{} cannot be started: {}; it does the work of this program and belongs in the same folder: build it with the "
      "program (cmake --build --preset release), or copy it there",
      core.string(), std::strerror(errno));
}

}  // namespace

int front(const std::vector<std::string>& words, char** argv) {
  open_closed_streams();
  std::signal(SIGXFSZ, SIG_IGN);  // as in run(): an error with a message
  CommandLine line;
  if (const auto answered = line.parse(words)) return static_cast<int>(*answered);
  try {
    // The core answers them, once its libraries are loaded: a run that is stopped before is to be requeued as any
    // other.
    if (line.command() == "train") train::hold_stop_signals();
    if (line.command() == "options") return static_cast<int>(print_options(line.arguments().options));
    check_configuration_of(line);
    const auto core = core_file();
    set_openmp_waiting();
    if (rehearses(line)) planner::start_rehearsals_before(core);
    start_core(core, argv);
  } catch (const UserError& error) {
    return static_cast<int>(say(error));
  }
}

}  // namespace vlmtrain::app
