#include "app/doctor_arguments.h"

#include "app/validators.h"

namespace vlmtrain::app {

void declare(CLI::App& command, DoctorArguments& arguments) {
  CLI::Option* const config =
      command.add_option("--config", arguments.config, "a run's YAML file, whose files are looked at too")
          ->check(not_empty());
  command.add_option("overrides", arguments.overrides, "key=value, with --config")->needs(config);
  command.add_option("--output-dir", arguments.output_dir, "folder for results, instead of the present one")
      ->check(not_empty())
      ->excludes(config);
  command
      .add_option("--device", arguments.device,
                  "what to train on: auto, cpu, cuda, cuda:N, or virtual:CARD such as virtual:h100")
      ->capture_default_str();
  command.add_flag("--json", arguments.json, "print all that was found as one JSON object on stdout");
}

}  // namespace vlmtrain::app
