#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "app/command.h"
#include "app/run_device.h"
#include "app/temporary_folder.h"
#include "app/terminal_style.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/hypothetical_sample.h"
#include "vlmtrain/planner/search.h"
#include "vlmtrain/report/plan_text.h"
#include "vlmtrain/report/plan_timeline.h"
#include "vlmtrain/train/planning.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::app {

namespace {

constexpr const char* kDefaultModel = "llava-1.5-7b";
constexpr int64_t kDefaultRank = 16;

struct Arguments {
  std::string gpu;
  std::optional<double> gpu_gigabytes;
  std::string config;
  std::vector<std::string> overrides;
  std::optional<int64_t> images;
  std::string image_size;
  std::optional<int64_t> text_tokens;
  std::optional<int64_t> answer_tokens;
  std::string finetune;
  int64_t world_size = 1;
  bool json = false;
  std::string timeline;

  /// Whether the samples are those of the flags and not of a data set.
  bool describes_samples() const { return images || text_tokens || answer_tokens || !image_size.empty(); }
};

planner::TargetCard card_of(const Arguments& arguments) {
  if (!arguments.gpu.empty() && arguments.gpu_gigabytes) {
    throw usage_error("--gpu and --gpu-gb: give one of them; --gpu {} says its size, and memory.limit_gb lowers it",
                      arguments.gpu);
  }
  if (!arguments.gpu.empty()) return planner::card_by_name(arguments.gpu);
  if (arguments.gpu_gigabytes) return planner::card_of_size(*arguments.gpu_gigabytes);
  const at::Device device = open_device("auto");
  if (device.is_cpu()) {
    throw usage_error("there is no GPU in this machine; say for which one to plan, with --gpu-gb 24 or --gpu rtx4090");
  }
  return planner::card_of_device(memory::describe(device));
}

/// WIDTHxHEIGHT, in pixels.
void read_image_size(const std::string& text, models::HypotheticalSample& sample) {
  if (text.empty()) return;
  int64_t width = 0;
  int64_t height = 0;
  char rest = 0;
  if (std::sscanf(text.c_str(), "%5ldx%5ld%c", &width, &height, &rest) != 2 || width < 1 || height < 1) {
    throw usage_error("--image-size {}: must be WIDTHxHEIGHT in pixels, such as 1024x768", text);
  }
  sample.image_width = width;
  sample.image_height = height;
}

planner::Workload described_workload(const Arguments& arguments, const train::Config& config) {
  models::HypotheticalSample sample;
  sample.images = arguments.images.value_or(sample.images);
  sample.text_tokens = arguments.text_tokens.value_or(sample.text_tokens);
  sample.label_tokens = arguments.answer_tokens.value_or(std::min(sample.label_tokens, sample.text_tokens - 1));
  sample.image_max_pixels = config.data.image_max_pixels;
  read_image_size(arguments.image_size, sample);
  return {.candidates = {{.shapes = {models::shape_of(config.model.path, sample)}, .first_id = {}}},
          .global_batch_size = config.training.global_batch_size};
}

/// For the samples of data.train.
planner::PlanRequest data_request(const train::Config& config, const planner::TargetCard& card) {
  const auto records = train::read_records(config.data.train);
  const auto processor =
      models::load_processor(config.model.path, train::processor_settings(config.data, config.data.train));
  return train::plan_request(config, card, train::workload_of(records, *processor, config),
                             train::task_settings(config, records));
}

void print(const planner::Plan& plan, const Arguments& arguments) {
  if (arguments.json) {
    fmt::print("{}\n", plan.to_json().dump());
    return;
  }
  fmt::print("{}", report::plan_text(plan, style_of_stdout()));
}

/// The configuration, if there is one, with what the flags say; a 7B model with LoRA if nothing says which.
train::Config read_config(const Arguments& arguments) {
  train::Config config;
  train::declare(config).read(arguments.config, arguments.overrides);
  const bool default_job = config.model.path.empty();
  if (default_job) config.model.path = kDefaultModel;
  const bool lora = arguments.finetune.empty() ? default_job : arguments.finetune == "lora";
  if (lora && config.lora.rank == 0 && config.model.adapter.empty()) config.lora.rank = kDefaultRank;
  if (arguments.finetune == "full") {
    config.lora = {};
    config.model.adapter.clear();
  }
  return config;
}

ExitCode plan(const Arguments& arguments) {
  start_log(/*quiet=*/false);
  train::Config config = read_config(arguments);
  const std::string model = config.model.path;
  std::optional<TemporaryFolder> preset;
  if (!std::filesystem::exists(model)) {
    preset.emplace();
    models::write_preset_config(model, preset->path());
    config.model.path = preset->path().string();
  }
  const planner::TargetCard card = card_of(arguments);
  const bool from_data = !config.data.train.empty() && !arguments.describes_samples();
  auto request =
      from_data ? data_request(config, card) : train::plan_request(config, card, described_workload(arguments, config));
  request.workload.world_size = arguments.world_size;
  request.model = model;
  request.with_timeline = !arguments.timeline.empty();
  const planner::Plan plan = planner::make_plan(request);
  if (!arguments.timeline.empty()) io::write_file(arguments.timeline, report::plan_timeline_html(plan));
  print(plan, arguments);
  return plan.fits ? ExitCode::kDone : ExitCode::kDoesNotFit;
}

/// A flag that is another way to write a configuration key.
void add_key_flag(CLI::App& command, Arguments& arguments, const char* flag, const std::string& key,
                  const std::string& description) {
  command.add_option_function<std::string>(
      flag, [&arguments, key](const std::string& value) { arguments.overrides.push_back(key + "=" + value); },
      fmt::format("{} ({})", description, key));
}

}  // namespace

Action declare_plan(CLI::App& command) {
  const auto arguments = std::make_shared<Arguments>();
  command.add_option("--gpu-gb", arguments->gpu_gigabytes, "size of the card in gigabytes, as shops count them");
  command.add_option("--gpu", arguments->gpu, "or its name, such as rtx4090 or a100-40 (docs/planner.md)");
  command.add_option("--config", arguments->config, "YAML file; the samples are those of its data.train");
  command.add_option("overrides", arguments->overrides, "key=value, such as memory.recompute=none");
  add_key_flag(command, *arguments, "--model", "model.path", "checkpoint folder or name of a preset");
  add_key_flag(command, *arguments, "--global-batch", "training.global_batch_size", "samples of a step");
  add_key_flag(command, *arguments, "--micro-batch", "training.micro_batch_size", "samples of a pass, or auto");
  add_key_flag(command, *arguments, "--precision", "training.precision", "bf16, fp16 or fp32");
  add_key_flag(command, *arguments, "--optimizer-states", "training.optimizer_states", "fp32, bf16 or 8bit");
  add_key_flag(command, *arguments, "--quantization", "model.quantization", "none, nf4 or int8; with LoRA");
  add_key_flag(command, *arguments, "--recompute", "memory.recompute", "auto, none, all or a number of blocks");
  add_key_flag(command, *arguments, "--mode", "memory.mode", "conservative, balanced or aggressive");
  add_key_flag(command, *arguments, "--limit-gb", "memory.limit_gb", "most memory to take, in GB of 10⁹ bytes");
  command.add_option("--images", arguments->images, "images of a sample [1]");
  command.add_option("--image-size", arguments->image_size, "their size in pixels [1024x768]");
  command.add_option("--text-tokens", arguments->text_tokens, "tokens of question and answer of a sample [256]");
  command.add_option("--answer-tokens", arguments->answer_tokens, "tokens of these that are learnt [64]");
  command
      .add_option("--finetune", arguments->finetune,
                  fmt::format("full, or lora with lora.rank (else {}); without --model lora", kDefaultRank))
      ->check(CLI::IsMember({"full", "lora"}));
  command.add_option("--world-size", arguments->world_size, "GPUs that share a global batch")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}))
      ->capture_default_str();
  command.add_option("--timeline", arguments->timeline, "write the memory of a step over time to this HTML file");
  command.add_flag("--json", arguments->json, "print the plan as one JSON object on stdout");
  return [arguments] { return plan(*arguments); };
}

}  // namespace vlmtrain::app
