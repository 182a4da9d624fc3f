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

#include "app/command_line.h"
#include "app/commands.h"
#include "app/last_words.h"
#include "app/leave.h"
#include "app/standard_streams.h"
#include "vlmtrain/base/first_line.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/memory/processor.h"
#include "vlmtrain/memory/shortage.h"

namespace vlmtrain::app {

namespace {

struct CommandEntry {
  const char* name;
  ExitCode (*act)(const Arguments& all);
};

constexpr CommandEntry kCommands[] = {
    {"train", [](const Arguments& all) { return train(all.train); }},
    {"plan", [](const Arguments& all) { return plan(all.plan); }},
    {"inspect", [](const Arguments& all) { return inspect(all.inspect); }},
    {"doctor", [](const Arguments& all) { return doctor(all.doctor); }},
    {"init", [](const Arguments& all) { return init(all.init); }},
    {"eval", [](const Arguments& all) { return eval(all.eval); }},
    {"generate", [](const Arguments& all) { return generate(all.generate); }},
    {"merge", [](const Arguments& all) { return merge(all.merge); }},
    {"options", [](const Arguments& all) { return options(all.options); }},
    {"report", [](const Arguments& all) { return report(all.report); }},
    {"rehearse", [](const Arguments& /*all*/) { return rehearse(); }},
};

bool is_thread_that_cannot_start(const std::exception& error) {
  const auto* const failed = dynamic_cast<const std::system_error*>(&error);
  return failed != nullptr && failed->code() == std::errc::resource_unavailable_try_again;
}

/// What LibTorch and the system throw: memory that ran out, a device that failed, or else a bug.
ExitCode report_unforeseen(const std::exception& error) {
  if (const auto shortage = memory::shortage_in(error)) {
    const bool on_host = shortage->of == memory::Scarce::kHost;
    std::fprintf(stderr, "vlmtrain: error: %s is full: %s; free memory there%s, or take a smaller model\n",
                 std::string(memory::name_of(shortage->of)).c_str(), printable(shortage->reason).c_str(),
                 on_host ? ", ask for more (SLURM's --mem)" : "");
    return ExitCode::kDoesNotFit;
  }
  if (dynamic_cast<const c10::AcceleratorError*>(&error) != nullptr) {
    std::fprintf(
        stderr,
        "vlmtrain: error: the device failed: %s; start again, and training goes on from its last checkpoint; if "
        "it happens again, look at the driver's log (dmesg) and try another device\n",
        printable(first_line(error.what())).c_str());
    return ExitCode::kFailed;
  }
  if (is_thread_that_cannot_start(error)) {
    std::fprintf(stderr, "vlmtrain: error: %s\n", kNoThread);
    return ExitCode::kFailed;
  }
  std::fprintf(stderr, "vlmtrain: internal error, please report it: %s\n", printable_message(error.what()).c_str());
  return ExitCode::kFailed;
}

/// Says what went wrong, and with which exit code the process ends.
ExitCode report_error(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const SaidElsewhere& error) {
    return error.code();
  } catch (const UserError& error) {
    return say(error);
  } catch (const std::filesystem::filesystem_error& error) {
    std::fprintf(stderr, "vlmtrain: error: %s; check the path, its permissions and the free space\n",
                 printable_message(error.what()).c_str());
    return ExitCode::kFailed;
  } catch (const std::exception& error) {
    return report_unforeseen(error);
  }
}

ExitCode act(const CommandLine& line) {
  ExitCode code = ExitCode::kDone;
  std::exception_ptr failure;
  try {
    leave_on_signals(line.command());
    memory::keep_threads_to_quota();
    const auto* const command = std::ranges::find(kCommands, line.command(), &CommandEntry::name);
    VLMTRAIN_CHECK(command != std::end(kCommands), "{} does nothing", line.command());
    code = command->act(line.arguments());
  } catch (...) {
    failure = std::current_exception();
  }
  const ExitCode printed = after_printing(code);
  return failure && printed == ExitCode::kDone ? report_error(failure) : printed;
}

}  // namespace

int run(std::vector<std::string> arguments) {
  open_closed_streams();
  // A write above the limit of `ulimit -f` is an error like a full disk, with a message; it must not kill.
  std::signal(SIGXFSZ, SIG_IGN);
  CommandLine line;
  const auto answered = line.parse(std::move(arguments));
  return static_cast<int>(answered ? *answered : act(line));
}

}  // namespace vlmtrain::app
