#include "vlmtrain/app/run.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <map>
#include <optional>
#include <sstream>
#include <system_error>

#include "app/command.h"
#include "app/last_words.h"
#include "app/leave.h"
#include "app/standard_streams.h"
#include "app/wrong_words.h"
#include "vlmtrain/base/first_line.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/memory/shortage.h"

namespace vlmtrain::app {

namespace {

struct CommandEntry {
  const char* name;
  const char* description;
  Action (*declare)(CLI::App&);
};

constexpr CommandEntry kCommands[] = {
    {"train", "train as a configuration says (also without the word: vlmtrain --config FILE)", declare_train},
    {"plan", "say what a run needs on a GPU; no GPU is needed, no weights are read", declare_plan},
    {"inspect", "say what the data of a run is, what of it cannot be used, and show what is trained on",
     declare_inspect},
    {"doctor", "say what this machine has and lacks, and whether training would start", declare_doctor},
    {"init", "write a checkpoint of a preset: random, or of parts that others trained", declare_init},
    {"eval", "loss and accuracy of a checkpoint on a data set", declare_eval},
    {"generate", "answer a question about images", declare_generate},
    {"merge", "fold a LoRA adapter into its base's weights", declare_merge},
    {"options", "list every configuration key", declare_options},
    {"report", "write the report of a run, report.html, from the files in its folder", declare_report},
    {"rehearse", "run steps on a virtual card, as lines on stdin say", declare_rehearse},
};

/// `vlmtrain --config F` is `vlmtrain train --config F`.
void put_default_command(std::vector<std::string>& arguments) {
  constexpr std::string_view kOwnFlags[] = {"--help", "-h", "--version"};
  if (arguments.empty() || !arguments.front().starts_with('-')) return;
  if (std::find(std::begin(kOwnFlags), std::end(kOwnFlags), arguments.front()) != std::end(kOwnFlags)) return;
  arguments.insert(arguments.begin(), "train");
}

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
    std::fprintf(stderr, "vlmtrain: error: %s\n", printable_message(error.what()).c_str());
    return error.code();
  } catch (const std::filesystem::filesystem_error& error) {
    std::fprintf(stderr, "vlmtrain: error: %s; check the path, its permissions and the free space\n",
                 printable_message(error.what()).c_str());
    return ExitCode::kFailed;
  } catch (const std::exception& error) {
    return report_unforeseen(error);
  }
}

ExitCode act(const Action& action) {
  ExitCode code = ExitCode::kDone;
  std::exception_ptr failure;
  try {
    code = action();
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
  CLI::App app("Fine-tunes vision-language models and plans its own memory.", "vlmtrain");
  app.set_version_flag("--version", VLMTRAIN_VERSION);
  app.require_subcommand(1);
  std::map<const CLI::App*, Action> actions;
  for (const auto& entry : kCommands) {
    CLI::App* const command = app.add_subcommand(entry.name, entry.description);
    actions.emplace(command, entry.declare(*command));
  }
  put_default_command(arguments);
  std::vector<std::string> reversed(arguments.rbegin(), arguments.rend());  // as CLI11 takes them
  try {
    app.parse(reversed);
  } catch (const CLI::Success& asked_for) {  // --help or --version
    std::ostringstream out;
    app.exit(asked_for, out, out);
    std::fputs(out.str().c_str(), stdout);
    return static_cast<int>(after_printing(ExitCode::kDone));
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "vlmtrain: error: %s\n", printable(wrong_words(app, error, arguments)).c_str());
    return static_cast<int>(ExitCode::kUsage);
  }
  const CLI::App* const command = app.get_subcommands().front();
  return static_cast<int>(act([&] {
    leave_on_signals(command->get_name());
    return actions.at(command)();
  }));
}

CLI::Validator not_empty() {
  return {[](const std::string& value) { return std::string(value.empty() ? "is empty; give a value" : ""); }, ""};
}

CLI::Validator not_negative() {
  return {[](const std::string& value) {
            return std::string(value.starts_with('-') ? value + ": must be a whole number of at least 0" : "");
          },
          ""};
}

}  // namespace vlmtrain::app
