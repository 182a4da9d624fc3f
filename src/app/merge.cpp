#include <nlohmann/json.hpp>

#include <memory>
#include <string>

#include "app/command.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/models/adapter.h"
#include "vlmtrain/train/run_checkpoint.h"

namespace vlmtrain::app {

namespace {

struct Arguments {
  std::string adapter;
  std::string out;
  bool json = false;
};

ExitCode merge(const Arguments& arguments) {
  start_log(/*quiet=*/false);
  const std::string adapter = train::checkpoint_in(arguments.adapter).string();
  models::merge_adapter(adapter, arguments.out);
  if (arguments.json) {
    fmt::print("{}\n", io::json_text(nlohmann::ordered_json{{"adapter", adapter}, {"checkpoint", arguments.out}}));
  } else {
    spdlog::info("{}: the base of {} with the adapter in its weights", arguments.out, adapter);
  }
  return ExitCode::kDone;
}

}  // namespace

Action declare_merge(CLI::App& command) {
  const auto arguments = std::make_shared<Arguments>();
  command
      .add_option("--adapter", arguments->adapter,
                  "folder of a LoRA adapter in PEFT's layout, or of a run (its newest)")
      ->required()
      ->check(not_empty());
  command.add_option("--out", arguments->out, "new folder for the checkpoint")->required()->check(not_empty());
  command.add_flag("--json", arguments->json, "print the result as one JSON object on stdout");
  return [arguments] { return merge(*arguments); };
}

}  // namespace vlmtrain::app
