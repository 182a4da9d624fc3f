#include "vlmtrain/app/run.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <iterator>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "app/commands/commands.h"
#include "app/process/process_control.h"
#include "app/process/terminate_handler.h"
#include "app/settings/command_line.h"
#include "app/settings/process_setup.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/memory/cpu_info.h"
#include "vlmtrain/memory/out_of_memory.h"
#include "vlmtrain/planner/backend.h"
#include "vlmtrain/report/run_report.h"

namespace vlmtrain::app {

namespace {

struct CommandRunner {
  const char* name;
  ExitCode (*run)(const Arguments& arguments);
};

constexpr CommandRunner kCommands[] = {
    {"train", [](const Arguments& arguments) { return train(arguments.train); }},
    {"plan", [](const Arguments& arguments) { return plan(arguments.plan); }},
    {"inspect", [](const Arguments& arguments) { return inspect(arguments.inspect); }},
    {"doctor", [](const Arguments& arguments) { return doctor(arguments.doctor); }},
    {"init", [](const Arguments& arguments) { return init(arguments.init); }},
    {"eval", [](const Arguments& arguments) { return eval(arguments.eval); }},
    {"generate", [](const Arguments& arguments) { return generate(arguments.generate); }},
    {"merge", [](const Arguments& arguments) { return merge(arguments.merge); }},
    {"download", [](const Arguments& arguments) { return download(arguments.download); }},
    {"options", [](const Arguments& arguments) { return list_options(arguments.options); }},
    {"report", [](const Arguments& arguments) { return report(arguments.report); }},
    {"dry-run", [](const Arguments& /*arguments*/) { return dry_run(); }},
};

/// std::thread throws EAGAIN if the system cannot start another thread.
bool is_thread_start_failure(const std::exception& error) {
  const auto* const system_error = dynamic_cast<const std::system_error*>(&error);
  return system_error != nullptr && system_error->code() == std::errc::resource_unavailable_try_again;
}

/// Reports an error of LibTorch or the system: out of memory, a failed device, the limit on
/// threads, or a bug. Returns its exit code.
ExitCode report_unexpected_error(const std::exception& error) {
  if (const auto out_of_memory = memory::detect_out_of_memory(error)) {
    const bool is_host_memory_full = out_of_memory->kind == memory::MemoryKind::kHost;
    std::fprintf(stderr, "vlmtrain: error: %s is full: %s; free memory there%s, or use a smaller model\n",
                 std::string(memory::to_string(out_of_memory->kind)).c_str(),
                 to_printable(out_of_memory->reason).c_str(),
                 is_host_memory_full ? ", ask for more (SLURM's --mem)" : "");
    return ExitCode::kDoesNotFit;
  }
  if (dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr) {
    std::fprintf(stderr,
                 "vlmtrain: error: the device failed: %s; run the same command again to resume from the last "
                 "checkpoint; if it fails again, check the driver's log (dmesg) and try another device\n",
                 to_printable(get_first_line(error.what())).c_str());
    return ExitCode::kFailed;
  }
  if (is_thread_start_failure(error)) {
    std::fprintf(stderr, "vlmtrain: error: %s\n", kThreadLimitMessage);
    return ExitCode::kFailed;
  }
  std::fprintf(stderr, "vlmtrain: internal error, please report it: %s\n", to_printable_message(error.what()).c_str());
  return ExitCode::kFailed;
}

/// Reports the error and returns its exit code.
ExitCode report_error(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const AlreadyReportedError& error) {
    return error.code();
  } catch (const UserError& error) {
    return report_user_error(error);
  } catch (const std::filesystem::filesystem_error& error) {
    // Names of inputs may be checked without opening them, in a folder that is not readable.
    if (error.code() == std::errc::permission_denied) {
      return report_user_error(
          data_error("{}: Permission denied; check its permissions and those of its folder", error.path1().string()));
    }
    std::fprintf(stderr, "vlmtrain: error: %s; check the path, its permissions and the free space\n",
                 to_printable_message(error.what()).c_str());
    return ExitCode::kFailed;
  } catch (const std::exception& error) {
    return report_unexpected_error(error);
  }
}

/// Flushes stdout before it reports an error, so that messages follow the output. If stdout cannot
/// be written, only that is reported, since it may be the cause of the error.
ExitCode run_command(const CommandLine& command_line) {
  ExitCode code = ExitCode::kSuccess;
  std::exception_ptr failure;
  try {
    exit_on_signal(command_line.command());
    memory::limit_threads_to_quota();
    const auto* const command = std::ranges::find(kCommands, command_line.command(), &CommandRunner::name);
    VLMTRAIN_CHECK(command != std::end(kCommands), "command {} has no implementation", command_line.command());
    code = command->run(command_line.arguments());
  } catch (...) {
    failure = std::current_exception();
  }
  const ExitCode flush_exit_code = flush_stdout(code);
  return failure && flush_exit_code == ExitCode::kSuccess ? report_error(failure) : flush_exit_code;
}

}  // namespace

int run_program(std::vector<std::string> arguments) {
  reopen_closed_streams();
  // By default a write above the limit on file sizes (`ulimit -f`) kills the process. It should
  // fail with a message instead, like a write to a full disk.
  std::signal(SIGXFSZ, SIG_IGN);
  CommandLine command_line;
  const auto exit_code = command_line.parse(std::move(arguments));
  return static_cast<int>(exit_code ? *exit_code : run_command(command_line));
}

ExitCode report(const ReportArguments& arguments) {
  init_logging(/*quiet=*/false);
  for (const std::string& problem : report::write_run_report(arguments.folder)) spdlog::warn("{}", problem);
  spdlog::info("{}/report.html: written", arguments.folder);
  return ExitCode::kSuccess;
}

ExitCode dry_run() {
  if (!planner::is_on_virtual_gpu())
    throw usage_error("dry-run: internal command that only vlmtrain plan starts, on a virtual GPU");
  spdlog::set_level(spdlog::level::off);  // stdout is for answers; the requesting process logs
  planner::serve_dry_runs();
  return ExitCode::kSuccess;
}

}  // namespace vlmtrain::app
