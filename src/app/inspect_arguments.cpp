#include "app/inspect_arguments.h"

#include "app/validators.h"

namespace vlmtrain::app {

namespace {

constexpr int64_t kMaxShownSamples = 100;

}  // namespace

void declare(CLI::App& command, InspectArguments& arguments) {
  command.add_option("--config", arguments.config, "YAML file; data.train names the data")->required();
  command.add_option("overrides", arguments.overrides, "key=value, such as data.max_length=4096");
  command
      .add_option("--html", arguments.html, "write all of it to this HTML file, with pictures as the model gets them")
      ->check(not_empty());
  command.add_flag("--json", arguments.json, "print it as one JSON object on stdout");
  command.add_flag("--decode", arguments.decode, "decode every picture and video, not only their headers");
  command
      .add_option("--samples", arguments.samples, "samples to show as they are trained on, the first that are drawn")
      ->check(CLI::Range(int64_t{0}, kMaxShownSamples))
      ->capture_default_str();
  command.add_option("--record", arguments.records, "and this one, by its id or its place from 1; may be repeated")
      ->expected(1)
      ->take_all();
  command
      .add_option("--gpu", arguments.gpu_flags.gpu,
                  "predict the memory of the largest samples on this card, as plan does")
      ->take_last();
  command.add_option("--gpu-gb", arguments.gpu_flags.gpu_gigabytes, "or on one of this size")->take_last();
  command.add_option("--tokenizer", arguments.tokenizer, "tokenizer.json of a preset's model");
}

}  // namespace vlmtrain::app
