#include <nlohmann/json.hpp>

#include <memory>
#include <string>

#include "app/command.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/models/adapter.h"

namespace vlmtrain::app {

namespace {

struct Arguments {
  std::string adapter;
  std::string out;
  bool json = false;
};

ExitCode merge(const Arguments& arguments) {
  start_log(/*quiet=*/false);
  models::merge_adapter(arguments.adapter, arguments.out);
  if (arguments.json) {
    fmt::print("{}\n",
               io::json_text(nlohmann::ordered_json{{"adapter", arguments.adapter}, {"checkpoint", arguments.out}}));
  } else {
    spdlog::info("{}: the base of {} with the adapter in its weights", arguments.out, arguments.adapter);
  }
  return ExitCode::kDone;
}

}  // namespace

Action declare_merge(CLI::App& command) {
  const auto arguments = std::make_shared<Arguments>();
  command.add_option("--adapter", arguments->adapter, "folder of a LoRA adapter in PEFT's layout")
      ->required()
      ->check(not_empty());
  command.add_option("--out", arguments->out, "new folder for the checkpoint")->required()->check(not_empty());
  command.add_flag("--json", arguments->json, "print the result as one JSON object on stdout");
  return [arguments] { return merge(*arguments); };
}

}  // namespace vlmtrain::app
